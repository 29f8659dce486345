"""What a remote store holds, and the statements in it that publishers sign.

    records/<publisher>/<ab>/<key>.json      which graphs the publisher has for a key: what a look-up reads
    objects/<ab>/<digest>                    manifests and files of graphs, by blake3 of their bytes
    withdrawn/<publisher>/<manifest>.json    that the publisher takes back a graph
    withdrawn/<publisher>.json               all of those, for readers that cannot list
    graphs/<publisher>/<ab>/<key>/<manifest>.json    one graph for a key: what records are made of by whoever pushes
    index/<publisher>.json                   the keys, for readers that cannot list
    log/<publisher>.jsonl                    what was published and withdrawn, in order: see `published_log`

A publisher is named by the public key, a key by blake3 of all its fields. So each name in a store is made of what was
asked for or signed, and a store can be copied file by file. Withdrawals have a file each, so that machines which write
at once lose none; the list of them is made of the files, by whoever copies a store, too.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ..manifest import Strict
from ..trust import ed25519, withdrawals
from ..trust.publishers import PublicKey
from ..trust.withdrawals import Envelope
from .transport import Patience, Remote, StoreError

MOST_BYTES = 256 << 10  # of a record
MOST_GRAPHS = 64  # of a key: one for each version of the code that it was captured from
MOST_INDEX_BYTES = 16 << 20
_PURPOSE = b"onegraph record, version 1\n"

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_HEX = "[0-9a-f]{64}"
_SPREAD = "(?P<ab>[0-9a-f]{2})/(?P<%s>(?P=ab)[0-9a-f]{62})"
_NAMES = {
    "object": f"objects/{_SPREAD % 'digest'}",
    "graph": f"graphs/(?P<publisher>{_HEX})/{_SPREAD % 'key'}/(?P<digest>{_HEX})\\.json",
    "record": f"records/(?P<publisher>{_HEX})/{_SPREAD % 'digest'}\\.json",
    "withdrawal": f"withdrawn/(?P<publisher>{_HEX})/(?P<digest>{_HEX})\\.json",
    "withdrawals": f"withdrawn/(?P<publisher>{_HEX})\\.json",
    "index": f"index/(?P<publisher>{_HEX})\\.json",
    "line": f"log/(?P<publisher>{_HEX})/[0-9]{{8}}\\.json",
    "log": f"log/(?P<publisher>{_HEX})\\.jsonl",
}


@dataclass(frozen=True)
class Publisher:
    """A publisher: the name that this user gave, and the public key."""

    name: str
    key: str


class PublishedUse(Strict):
    """What the first use on one of the publisher's machines showed, as in `FirstUse`.

    Attributes:
        target: of the machine; the graph's own.
        driver: version of the GPU's driver there; empty for a CPU.
    """

    target: dict[str, str]
    driver: str = ""
    environment: str
    checked: dict[str, float]
    eager_ms: float | None = None
    compiled_ms: float | None = None
    size: str = ""


class RemoteGraph(Strict):
    """A graph of a record.

    Attributes:
        manifest: digest of its manifest's bytes.
        bytes: of the manifest.
        signature: the publisher's over the manifest, as in `publisher.json`.
        first_uses: on the publisher's machines.
    """

    manifest: Digest
    bytes: int = Field(ge=1)
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")
    first_uses: tuple[PublishedUse, ...] = Field(default=(), max_length=16)


class Record(Strict):
    """Which graphs a publisher has for a key, the latest first."""

    version: Literal[1] = 1
    publisher: PublicKey
    key: Digest
    graphs: tuple[RemoteGraph, ...] = Field(max_length=MOST_GRAPHS)


class Index(Strict):
    """The keys that a publisher has graphs for. It is not signed, since each record is."""

    version: Literal[1] = 1
    keys: tuple[Digest, ...] = Field(max_length=200_000)


def record_name(publisher: str, key: str) -> str:
    return f"records/{publisher}/{key[:2]}/{key}.json"


def graph_name(publisher: str, key: str, manifest: str) -> str:
    return f"graphs/{publisher}/{key[:2]}/{key}/{manifest}.json"


def graphs_folder(publisher: str, key: str) -> str:
    return f"graphs/{publisher}/{key[:2]}/{key}"


def object_name(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


def withdrawn_name(publisher: str) -> str:
    return f"withdrawn/{publisher}.json"


def withdrawal_name(publisher: str, manifest: str) -> str:
    return f"withdrawn/{publisher}/{manifest}.json"


def index_name(publisher: str) -> str:
    return f"index/{publisher}.json"


@dataclass(frozen=True)
class Named:
    """What the name of a file in a store tells."""

    kind: str  # one of `_NAMES`
    digest: str  # of the manifest, the key, or the bytes
    publisher: str


def named(name: str) -> Named | None:
    """Read the name of a file; None for any that no store has.

    >>> named(object_name("ab" * 32)).kind, named(withdrawn_name("cd" * 32)).kind
    ('object', 'withdrawals')
    >>> named("objects/../../etc/passwd") is None
    True
    """
    for kind, pattern in _NAMES.items():
        if match := re.fullmatch(pattern, name):
            facts = match.groupdict("")
            return Named(kind, facts.get("digest", ""), facts.get("publisher", ""))
    return None


def digests(names: Iterable[str], kind: str) -> list[str]:
    """Return the digests that files of one kind are named by, in order."""
    return sorted(one.digest for one in map(named, names) if one is not None and one.kind == kind)


def sign(private: bytes, record: Record) -> bytes:
    """Sign a record: the bytes of its file. Raises NoCryptographyError."""
    return signed(private, _PURPOSE, record.model_dump_json())


def signed(private: bytes, purpose: bytes, statement: str) -> bytes:
    """Sign a statement of some kind: the bytes of its file, one line. Raises NoCryptographyError."""
    value = ed25519.sign(private, purpose + statement.encode())
    return Envelope(statement=statement, value=value).model_dump_json().encode()


def statement(data: bytes, public: str, purpose: bytes) -> str | Envelope:
    """Give what a publisher signed for some purpose; or the whole, where it is not the publisher's.

    Raises:
        ValueError: it is no signed statement.
        NoCryptographyError: nothing can be verified.
    """
    envelope = Envelope.model_validate_json(data)
    right = ed25519.is_signed(public, envelope.value, purpose + envelope.statement.encode())
    return envelope.statement if right else envelope


def read(data: bytes, store: str, publisher: Publisher, key: str) -> Record | Reason:
    """Read a record, if the publisher signed it for this key.

    Args:
        store: its address for people.
    """
    if len(data) > MOST_BYTES:
        return reasons.StoreBadRecord(store, f"more than {MOST_BYTES} bytes")
    try:
        signed = statement(data, publisher.key, _PURPOSE)
        if isinstance(signed, Envelope):
            return _why_unsigned(signed, store, publisher)
        record = Record.model_validate_json(signed)
    except ValueError as error:
        return reasons.StoreBadRecord(store, in_brief(error, 80))
    except ed25519.NoCryptographyError:
        return reasons.NeedsCryptography()
    if record.publisher != publisher.key:
        return reasons.StoreUnknownPublisher(store, publisher.name)
    return record if record.key == key else reasons.StoreOtherKey(store)


def _why_unsigned(envelope: Envelope, store: str, publisher: Publisher) -> Reason:
    """Tell another publisher's record from one that was changed."""
    try:
        claimed = Record.model_validate_json(envelope.statement).publisher
    except ValidationError:
        claimed = publisher.key
    wrong = reasons.StoreWrongSignature if claimed == publisher.key else reasons.StoreUnknownPublisher
    return wrong(store, publisher.name)


# Withdrawals ------------------------------------------------------------------------------------------------------


def read_withdrawals(
    remote: Remote, public: str, patience: Patience | None = None, withdrawn: Container[str] = ()
) -> Iterator[tuple[dict[str, bytes], bool]]:
    """Read what a publisher takes back: the list, then each file that it lacks.

    Args:
        withdrawn: manifests that are known to be withdrawn.

    Returns:
        Of each, by manifest, the signed lines; and whether all of it is the publisher's.

    Raises:
        StoreError: the store does not tell.
        NoCryptographyError: nothing can be verified.
    """
    listed, right = _read_lines(remote, withdrawn_name(public), public, patience, withdrawn)
    yield listed, right
    if not remote.can_list:
        return
    try:
        files = _withdrawn_files(remote, public, patience)
    except StoreError as error:
        if not isinstance(error.reason, reasons.StoreForbidden):
            raise
        return  # such a reader has the list
    for digest in files:
        if digest not in listed and digest not in withdrawn:
            yield _read_lines(remote, withdrawal_name(public, digest), public, patience)


def write_withdrawals(remote: Remote, public: str, lines: Mapping[str, bytes]) -> int:
    """Write the withdrawals that a store lacks, and make its list of all.

    Returns:
        Bytes that were written.

    Raises:
        StoreError: the store cannot be read or written, or does not give back what was written.
    """
    stored = _withdrawn_files(remote, public)
    new = {digest: line for digest, line in lines.items() if digest not in stored}
    for digest, line in new.items():
        remote.write(withdrawal_name(public, digest), line)
    listed = {digest: line for digest, line in lines.items() if digest in stored}  # the new ones are read back

    def made(files: list[str]) -> bytes:
        for digest in files:
            if digest not in listed:
                file = withdrawal_name(public, digest)
                added, right = _read_lines(remote, file, public)
                listed.update(added)
                if not right:
                    remote.remove(file)  # nobody signed it, and readers would complain of it
        return b"\n".join(listed[digest] for digest in sorted(listed))

    name = withdrawn_name(public)
    count = remote.remake(name, withdrawals.MOST_BYTES, lambda: _withdrawn_files(remote, public), made)
    if lines.keys() - listed:
        raise StoreError(reasons.StoreReadOnly(remote.label, "what was written is not there"))
    return count + sum(map(len, new.values()))


def _withdrawn_files(remote: Remote, public: str, patience: Patience | None = None) -> list[str]:
    """The digests of the manifests that have a file."""
    return digests(remote.list(f"withdrawn/{public}", patience), "withdrawal")


def _read_lines(
    remote: Remote, name: str, public: str, patience: Patience | None = None, withdrawn: Container[str] = ()
) -> tuple[dict[str, bytes], bool]:
    return withdrawals.read(remote.read(name, withdrawals.MOST_BYTES, patience) or b"", public, withdrawn)
