"""The log of what a publisher published in a store and withdrew from it, to which lines are only ever added.

    log/<publisher>/<number>.json    one line, written once by whoever publishes: two machines never write the same one
    log/<publisher>.jsonl            all lines in order, made of those: what a look-up reads in one request

Each line is a signed statement, which has the digest of the statement before. So the last one is the signed head: its
number is the count, and its signature covers all lines before it. What this user saw of a log at an address is kept in
the graph folder, and what that address shows later must go on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from blake3 import blake3
from pydantic import Field

from ...common import reasons
from ...common.reasons import Reason
from ..files import discard, read_regular, replace_text
from ..manifest import Strict
from ..trust.publishers import PublicKey
from ..trust.withdrawals import Envelope
from . import records
from .records import Digest, Publisher
from .transport import Patience, Remote, StoreError

FOLDER = ".published"  # below the user's folder
MOST_BYTES = 16 << 20  # of a log: 30,000 lines
_PURPOSE = b"onegraph log, version 1\n"
_NO_LINE = "0" * 64

Event = tuple[Literal["published", "withdrawn"], str, str]  # what happened, digests of the key and of the manifest


class LogLine(Strict):
    """What happened to a graph.

    Attributes:
        number: 1 for the first line.
        before: digest of the statement of the line before; zeros for the first.
        key: digest of the graph's key.
        manifest: digest of its manifest's bytes.
    """

    version: Literal[1] = 1
    publisher: PublicKey
    number: int = Field(ge=1)
    before: Digest
    what: Literal["published", "withdrawn"]
    key: Digest
    manifest: Digest


class Log:
    """Lines whose chain is whole.

    Attributes:
        lines: as the store has them.
        digests: of their statements, since others can write a statement and its signature as another line.
        published: what was ever published: manifest -> key.
        withdrawn: the manifests of those that were withdrawn.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.entries: list[LogLine] = []
        self.digests = [_NO_LINE]
        self.published: dict[str, str] = {}
        self.withdrawn: set[str] = set()

    def add(self, line: bytes, statement: str, public: str) -> bool:
        """Add a line, if it follows the last one; whether it does. Raises ValueError: it is no line."""
        one = LogLine.model_validate_json(statement)
        if (one.publisher, one.number, one.before) != (public, len(self.digests), self.digests[-1]):
            return False
        self.lines.append(line)
        self.entries.append(one)
        self.digests.append(blake3(statement.encode()).hexdigest())
        if one.what == "withdrawn":
            self.withdrawn.add(one.manifest)
        else:
            self.published[one.manifest] = one.key
        return True

    def continues(self, before: Log) -> bool:
        """Tell whether another log is the begin of this one."""
        return self.digests[: len(before.digests)] == before.digests


def log_name(publisher: str) -> str:
    return f"log/{publisher}.jsonl"


def line_name(publisher: str, number: int) -> str:
    return f"log/{publisher}/{number:08}.json"


def read(data: bytes, store: str, publisher: Publisher) -> tuple[Log, Reason | None]:
    """Read a log.

    The last line's signature is verified first, so that a forged log costs the time of one.

    Args:
        store: its address for people.

    Returns:
        The lines up to the first that is not as its publisher wrote it, and why that is; None: all are.

    Raises:
        NoCryptographyError: nothing can be verified.
    """
    lines, log = data.split(b"\n"), Log()
    if len(data) > MOST_BYTES or _signed(lines[-1], publisher.key) is None:
        return log, reasons.StoreLogNotSigned(store, publisher.name)
    for number, line in enumerate(lines, 1):
        try:
            fits = log.add(line, Envelope.model_validate_json(line).statement, publisher.key)
        except ValueError:
            fits = False
        if not fits:
            return log, reasons.StoreLogBroken(store, publisher.name, number)
    return log, None


def look(remote: Remote, publisher: Publisher, home: Path, patience: Patience | None = None) -> Log | None:
    """Read a publisher's log in a store, and remember it; None: there is none, and never was one for this user.

    Raises:
        StoreError: the store does not give it, it is not whole, or it does not go on from what this user saw last.
        NoCryptographyError: nothing can be verified.
    """
    data = remote.read(log_name(publisher.key), MOST_BYTES, patience)
    before, facts = remembered(home, remote, publisher), (remote.label, publisher.name)
    if data is None and not before.lines:
        return None
    log, wrong = read(data, remote.label, publisher) if data is not None else (Log(), reasons.StoreLogMissing(*facts))
    if wrong is None and before.continues(log) and log.lines != before.lines:
        last = remote.read(line_name(publisher.key, len(before.lines)), records.MOST_BYTES, patience)
        if last == before.lines[-1]:  # the file is behind for a moment, as while two machines make it
            return before
        wrong = reasons.StoreLogOlder(*facts, len(log.lines), len(before.lines))
    elif wrong is None and not log.continues(before):
        wrong = reasons.StoreLogForked(*facts)
    if wrong is not None:
        raise StoreError(wrong)
    with contextlib.suppress(OSError):  # a folder that cannot be written
        remember(home, remote, publisher.key, log)
    return log


# What this user saw -----------------------------------------------------------------------------------------------


def _folder(home: Path, remote: Remote, public: str) -> Path:
    return home / FOLDER / public / blake3(remote.address.url.encode()).hexdigest(length=8)


def remembered(home: Path, remote: Remote, publisher: Publisher) -> Log:
    """Return the longest log that this user saw at an address. Raises NoCryptographyError."""
    with contextlib.suppress(OSError, ValueError):
        longest = max(_folder(home, remote, publisher.key).glob("[0-9]*"))
        return read(read_regular(longest, MOST_BYTES), "", publisher)[0]
    return Log()


def remember(home: Path, remote: Remote, public: str, log: Log) -> None:
    """Keep a log as the longest that this user saw. Raises OSError."""
    path = _folder(home, remote, public) / f"{len(log.lines):08}.jsonl"
    if log.lines and not path.exists():
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_text(path, b"\n".join(log.lines).decode())
        for older in path.parent.glob(
            "[0-9]*"
        ):  # a file for each length, so that of two processes the longer one stays
            if older.name < path.name:
                discard(older)


def forget(home: Path, remote: Remote, public: str) -> None:
    """Forget what this user saw at an address. Raises OSError."""
    for path in _folder(home, remote, public).glob("[0-9]*"):
        path.unlink(missing_ok=True)


# Writing ----------------------------------------------------------------------------------------------------------


class LogWriter:
    """Adds lines to a publisher's log in one store, as any number of machines may at once. Methods raise StoreError.

    Args:
        home: the graph folder, from which a store that lost lines has them again; None: nothing is remembered.
    """

    def __init__(self, remote: Remote, public: str, home: Path | None = None) -> None:
        self._remote, self._home, self._publisher = remote, home, Publisher("its publisher", public)
        self._log: Log | None = None
        self._listed = 0  # lines that the file of all has

    def current(self, known: Log | None = None) -> Log:
        """Return the log as the store has it, with the lines that it lost and that are known here, or in another store.

        Raises:
            NoCryptographyError: nothing can be verified.
        """
        remote, public = self._remote, self._publisher.key
        listed, wrong = read(remote.read(log_name(public), MOST_BYTES) or b"", remote.label, self._publisher)
        seen = Log() if self._home is None else remembered(self._home, remote, self._publisher)
        logs = [Log() if wrong else listed, seen, known or Log()]  # one that is not whole is made anew of its lines
        log, files = max(logs, key=lambda one: len(one.lines)), remote.list(f"log/{public}")
        if not all(log.continues(one) for one in logs):
            raise self._forked()
        self._log, self._listed = log, len(logs[0].lines)
        for number, line in enumerate(log.lines, 1):
            if line_name(public, number) not in files:
                self._create(number, line)
        return self._extended()

    def append(self, private: bytes, events: Iterable[Event]) -> None:
        """Add a line for each event that has none.

        Raises:
            OSError: the log cannot be remembered here.
        """
        log, public = self._log or self.current(), self._publisher.key
        for what, key, manifest in events:
            while manifest not in (log.published if what == "published" else log.withdrawn):
                number = len(log.lines) + 1
                line = LogLine(
                    publisher=public, number=number, before=log.digests[-1], what=what, key=key, manifest=manifest
                )
                self._create(number, records.signed(private, _PURPOSE, line.model_dump_json()))
                self._extended()  # by this line, or by another machine's of that number
                if len(log.lines) < number:
                    raise StoreError(reasons.StoreReadOnly(self._remote.label, "what was written is not there"))
        if len(log.lines) != self._listed:
            self.publish()
        if self._home is not None:
            remember(self._home, self._remote, public, log)

    def publish(self) -> int:
        """Make the file of all lines; bytes written."""
        remote, public, log = self._remote, self._publisher.key, self._log or self.current()
        if not log.lines:
            return 0

        def made(files: list[str]) -> bytes:
            return b"\n".join(self._extended().lines)

        count = remote.remake(log_name(public), MOST_BYTES, lambda: sorted(remote.list(f"log/{public}")), made)
        self._listed = len(log.lines)
        return count

    def _create(self, number: int, line: bytes) -> None:
        """Write a line, unless there is one of that number."""
        name = line_name(self._publisher.key, number)
        try:
            self._remote.write(name, line, mode="create")
        except StoreError:  # each protocol tells in its own way that there is a file
            if self._remote.size(name) is None:
                raise

    def _extended(self) -> Log:
        """Add the lines that the store has beyond those that are known, and return all."""
        assert self._log is not None
        remote, public, log = self._remote, self._publisher.key, self._log
        while (data := remote.read(name := line_name(public, len(log.digests)), records.MOST_BYTES)) is not None:
            statement = _signed(data, public)
            if statement is None or LogLine.model_validate_json(statement).number != len(log.digests):
                remote.remove(name)  # nobody signed it, or as another line, and the number is needed
                break
            if not log.add(data, statement, public):
                raise self._forked()
        return log

    def _forked(self) -> StoreError:
        return StoreError(reasons.StoreLogForked(self._remote.label, self._publisher.name))


def _signed(line: bytes, public: str) -> str | None:
    """Return the statement of a line that a publisher signed; None for any other. Raises NoCryptographyError."""
    try:
        statement = records.statement(line, public, _PURPOSE)
    except ValueError:
        return None
    return statement if isinstance(statement, str) and b"\n" not in line else None
