"""Putting graphs into a remote store under a publisher's key. Idempotent, and nobody who pushes meanwhile loses any.

Objects come first, named by their digests; then the graph's line in the log, so that no reader sees a graph without;
then one signed file for each graph of a key; then the key's record, which is made of all those files (`Remote.remake`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from blake3 import blake3
from pydantic import Base64Bytes, ValidationError

from ...common import reasons
from ...common.errors import in_brief
from ...common.reasons import Reason
from ..entry import Entry, read
from ..file_names import check_names
from ..files import read_regular
from ..integrity import Sound, check, differs
from ..key import key_digest
from ..manifest import MOST_BYTES, Manifest
from ..store import Store
from ..trust import ed25519, publishers, withdrawals
from ..trust.withdrawals import Withdrawal
from . import records
from .exporting import why_not
from .published_log import Event, LogWriter
from .records import Index, PublishedUse, Publisher, Record, RemoteGraph
from .source import Transfer, parse
from .transport import Remote

_LARGEST = 8 << 30  # bytes of a file

Progress = Callable[[int], None]


class Pusher:
    """Pushes graphs of one publisher to one store.

    Args:
        private: the publisher's key.
        home: the graph folder, which remembers what the publisher took back.

    Raises:
        NoCryptographyError: nothing can be signed.
    """

    def __init__(self, remote: Remote, private: bytes, home: Path) -> None:
        self._remote = remote
        self._home = home
        self._private = private
        self.public = ed25519.public_key(private)
        self._withdrawn: frozenset[str] | None = None
        self._log = LogWriter(remote, self.public, home)

    def has(self, entry: Entry) -> bool:
        """Tell whether the key's record names a graph already, which is not taken back. Raises StoreError, OSError."""
        key = key_digest(entry.manifest.key)
        record = self._read(records.record_name(self.public, key), key)
        named = set() if record is None else {graph.manifest for graph in record.graphs}
        return blake3(entry.text).hexdigest() in named - self._taken_back()

    def push(
        self,
        manifest: Manifest,
        text: bytes,
        files: Mapping[str, bytes | Path],
        first_uses: tuple[PublishedUse, ...] = (),
        progress: Progress | None = None,
    ) -> Transfer:
        """Push one graph. It is `pushed` where the store names it for the first time, whatever bytes were there.

        Args:
            manifest: parsed from `text`.
            files: by name; of those on the disk nobody else can change any.
            first_uses: on the publisher's machines.
            progress: is told of bytes that the store has by now.

        Raises:
            StoreError: the store cannot be read or written.
            OSError: the graph's files cannot be read.
        """
        wrong = check_names(manifest)
        if wrong is not None:
            return Transfer(manifest.label, "left out", reason=wrong)
        digest, key = blake3(text).hexdigest(), key_digest(manifest.key)
        if digest in self._taken_back():
            return Transfer(manifest.label, "left out", reason=reasons.GraphWithdrawn("whose key this is"))
        written = self._write_files(manifest, files, progress) + self._write_object(digest, len(text), text)
        signature = publishers.sign(self._private, text)
        graph = RemoteGraph(manifest=digest, bytes=len(text), signature=signature.value, first_uses=first_uses)
        one = Record(publisher=self.public, key=key, graphs=(graph,))
        self._log.append(self._private, [("published", key, digest)])
        name = records.graph_name(self.public, key, digest)
        published = self._read(name, key)
        if published is None or (first_uses and published.graphs != one.graphs):
            self._remote.write(name, records.sign(self._private, one))
        self.write_record(key)
        if written < manifest.bytes:
            # What was there may have been garbage, which somebody collected before the record named it.
            written += self._write_files(manifest, files, None)
        return Transfer(manifest.label, "pushed" if published is None else "there already", written)

    def write_record(self, key: str) -> None:
        """Make a key's record of all graphs that the store has for it. Raises StoreError."""

        def made(listed: list[str]) -> bytes:
            published = [self._read(name, key) for name in listed]
            graphs = [graph for one in published if one is not None for graph in one.graphs]
            # The latest first: it is the likeliest, and a record has room for so many.
            record = Record(publisher=self.public, key=key, graphs=tuple(graphs[: records.MOST_GRAPHS]))
            return records.sign(self._private, record)

        name = records.record_name(self.public, key)
        self._remote.remake(name, records.MOST_BYTES, lambda: self._listed(key), made)

    def withdraw(self, manifests: Iterable[str] = ()) -> frozenset[str]:
        """Take graphs back: workers refuse them from their next look at the store.

        Those that were taken back before are, too, whichever store lost or never had them. The log has a line then for
        each, and for all graphs that the store has, such as those that an older version pushed.

        Returns:
            All that the publisher has taken back.

        Raises:
            StoreError: the store cannot be read or written, or lost what was written.
            OSError: they cannot be remembered here.
        """
        lines, wrong = dict[str, bytes](), False
        for stored, right in records.read_withdrawals(self._remote, self.public):
            lines, wrong = lines | stored, wrong or not right
        for one in {*manifests, *withdrawals.remembered(self._home, self.public)} - lines.keys():
            statement = Withdrawal(publisher=self.public, manifest=one).model_dump_json()
            lines[one] = records.signed(self._private, Withdrawal.PURPOSE, statement)
        withdrawals.remember(self._home, self.public, lines)
        if lines or wrong:
            records.write_withdrawals(self._remote, self.public, lines)
            keys = set()
            for name in self._remote.list(f"graphs/{self.public}"):
                graph = records.named(name)
                if graph is not None and graph.kind == "graph" and graph.digest in lines:
                    self._remote.remove(name)
                    keys.add(name.split("/")[3])
            for key in sorted(keys):
                self.write_record(key)
        self._withdrawn = frozenset(lines)
        self._log.append(self._private, [*self._unlogged()])
        return self._withdrawn

    def _unlogged(self) -> Iterator[Event]:
        """What the log lacks of what the store has. Raises StoreError."""
        log = self._log.current()
        done = {*log.published, *self._taken_back()}
        for name in self._remote.list(f"graphs/{self.public}"):
            graph, key = records.named(name), name.split("/")[-2]
            if graph is not None and graph.digest not in done:
                signed = self._read(name, key)
                if signed is not None and graph.digest in {one.manifest for one in signed.graphs}:
                    yield "published", key, graph.digest
        for manifest in sorted(log.published.keys() & self._taken_back()):
            yield "withdrawn", log.published[manifest], manifest

    def write_index(self) -> None:
        """Tell readers that cannot list which keys there are. Raises StoreError."""
        write_index(self._remote, self.public)

    def write_note(self, name: str, purpose: bytes, statement: str) -> None:
        """Write a statement of another kind than a store's own. Raises StoreError."""
        self._remote.write(name, records.signed(self._private, purpose, statement))

    def read_note(self, name: str, purpose: bytes, most: int) -> str | None:
        """Read such a statement; None where there is none that this publisher signed. Raises StoreError."""
        try:
            statement = records.statement(self._remote.read(name, most) or b"", self.public, purpose)
        except ValueError:
            return None
        return statement if isinstance(statement, str) else None

    def _listed(self, key: str) -> list[str]:
        """The names of the graphs of a key, the latest first."""
        files = self._remote.list(records.graphs_folder(self.public, key))
        mine = {name: when for name, (_, when) in files.items() if records.named(name) is not None}
        return sorted(mine, key=lambda name: (-mine[name], name))

    def _read(self, name: str, key: str) -> Record | None:
        """A record that this publisher signed; None where there is none, or another's, which is written over."""
        data = self._remote.read(name, records.MOST_BYTES)
        record = data and records.read(data, self._remote.label, Publisher("", self.public), key)
        return record if isinstance(record, Record) else None

    def _taken_back(self) -> frozenset[str]:
        return self.withdraw() if self._withdrawn is None else self._withdrawn

    def _write_files(self, manifest: Manifest, files: Mapping[str, bytes | Path], progress: Progress | None) -> int:
        """Write those of a graph's files that the store lacks; the bytes that were written."""
        written = 0
        for name, file in manifest.files.items():
            written += self._write_object(file.blake3, file.bytes, files[name])
            if progress is not None:
                progress(file.bytes)
        return written

    def _write_object(self, digest: str, size: int, data: bytes | Path) -> int:
        """Write what has a digest, unless it is there; the bytes that were written."""
        name = records.object_name(digest)
        if not size or self._remote.size(name) == size:
            return 0
        self._remote.write(name, data if isinstance(data, bytes) else read_regular(data, _LARGEST))
        return size


def push(
    store: Store, entries: Iterable[Entry], pusher: Pusher, progress: Progress | None = None
) -> Iterator[Transfer]:
    """Push entries that this user may load, each once, and what the publisher took back from any store.

    What the store has already takes one request each.

    Args:
        progress: is told of bytes, also of those that the store has.

    Raises:
        StoreError: the store cannot be read or written; what was pushed before stays, and the next push goes on.
        OSError: what the publisher took back cannot be remembered here.
    """
    pusher.withdraw()  # what was taken back elsewhere
    seen: set[bytes] = set()
    for entry in entries:
        if entry.text in seen:
            continue
        seen.add(entry.text)
        uses, reason = published_uses(store, entry), why_not(store, entry)
        if reason is None and not uses and pusher.has(entry):
            if progress is not None:
                progress(entry.manifest.bytes)
            yield Transfer(entry.folder.name, "there already")
            continue
        if reason is None and isinstance(state := check(entry), Reason):
            reason = state
        done = Transfer("", "left out", reason=reason)
        if reason is None:
            files = {name: entry.folder / name for name in entry.manifest.files}
            done = pusher.push(entry.manifest, entry.text, files, uses, progress)
        yield dataclasses.replace(done, name=entry.folder.name)
    pusher.write_index()


def published_uses(store: Store, entry: Entry) -> tuple[PublishedUse, ...]:
    """Return the first-use result of this machine for an entry, for those who believe its publisher."""
    used = store.first_use(entry)
    target = entry.manifest.key.get("target")
    if not used.checked or used.compiled_ms is None or not isinstance(target, dict):
        return ()
    facts = used.model_dump(include={"driver", "environment", "checked", "eager_ms", "compiled_ms", "size"})
    return (PublishedUse(target=target, **facts),)


def write_index(remote: Remote, public: str) -> int:
    """Tell readers that cannot list which keys a publisher has graphs for; bytes written. Raises StoreError."""

    def made(keys: list[str]) -> bytes:
        return Index(keys=tuple(keys)).model_dump_json().encode()

    def listed() -> list[str]:
        return records.digests(remote.list(f"records/{public}"), "record")

    return remote.remake(records.index_name(public), records.MOST_INDEX_BYTES, listed, made)


# Graphs without a signature, on their way from the machine that compiled them to the one with the publisher's key ---


@dataclasses.dataclass(frozen=True)
class UnsignedGraph:
    """A graph as a task returns it: bytes, of which nothing is known yet; as JSON they are in base 64.

    Attributes:
        manifest: its bytes.
        files: by name.
        uses: what its first use showed there, as JSON.
    """

    manifest: Base64Bytes
    files: Mapping[str, Base64Bytes]
    uses: tuple[str, ...] = ()


def made_here(store: Store) -> Iterator[UnsignedGraph]:
    """Return the graphs that a store's own key signed, if they are whole."""
    for one in store.disk.entries():
        entry = read(one.path) if one.facts.signed_by == "me" and not one.quarantined else None
        if isinstance(entry, Entry) and isinstance(check(entry), Sound):
            uses = tuple(use.model_dump_json() for use in published_uses(store, entry))
            with contextlib.suppress(OSError):  # it is gone by now
                files = {name: read_regular(entry.folder / name, _LARGEST) for name in entry.manifest.files}
                yield UnsignedGraph(entry.text, files, uses)


def check_unsigned(unsigned: UnsignedGraph, expected: Mapping[str, Collection[str]]) -> Manifest | Reason:
    """Say whether a graph is whole: its manifest names what graphs have, and the files are what it lists.

    Args:
        expected: what fields of its key, and of the target in that, may be. One that it lacks is no look-up's.
    """
    if len(unsigned.manifest) > MOST_BYTES:
        return reasons.UnreadableManifest(f"more than {MOST_BYTES} bytes")
    graph = parse(unsigned.manifest)
    if isinstance(graph, Reason):
        return graph
    manifest = graph.manifest
    facts = {**manifest.key["target"], **manifest.key}
    for field, wanted in expected.items():
        value = str(facts.get(field, "")).partition("+")[0]  # machines with and without GPUs have other builds of torch
        if field in facts and value not in wanted:
            return reasons.NotAskedFor(field, value[:100], " or ".join(wanted))
    for name, listed in manifest.files.items():
        data = unsigned.files.get(name)
        wrong = reasons.MissingFile(name) if data is None else differs(name, data, listed)
        if wrong is not None:
            return wrong
    odd = sorted({*unsigned.files} - {*manifest.files})
    return reasons.UnlistedMember(odd[0][:100]) if odd else manifest


def push_unsigned(unsigned: UnsignedGraph, manifest: Manifest, pusher: Pusher) -> Transfer:
    """Sign and push a graph that another machine made.

    Args:
        manifest: that `check_unsigned` gave for it.

    Raises:
        StoreError: the store cannot be read or written.
        OSError: what the publisher took back cannot be remembered here.
    """
    try:
        uses = tuple(PublishedUse.model_validate_json(use) for use in unsigned.uses[:1])
    except ValidationError as error:
        return Transfer(manifest.label, "left out", reason=reasons.UnreadableManifest(in_brief(error)))
    return pusher.push(manifest, unsigned.manifest, unsigned.files, uses)
