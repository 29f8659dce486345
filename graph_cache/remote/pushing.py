"""Putting graphs into a remote store under a publisher's key. Idempotent, and nobody who pushes meanwhile loses any.

Objects come first, named by their digests; then one signed file for each graph of a key; then the key's record, which
is made of all those files. After its record each pusher lists the files again, and makes another record where there is
one that it did not have. So the last record of a key holds all that were there before it, as long as a store lists
what was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from pydantic import ValidationError

from ...common.reasons import GraphWithdrawn, Reason, StoreBadRecord, StoreUnreachable
from ..file_names import check_names
from ..files import read_regular
from ..manifest import Manifest
from ..trust import ed25519, publishers, withdrawals
from ..trust.withdrawals import Withdrawals
from . import records
from .records import Index, PublishedUse, Record, RemoteGraph
from .transport import Endless, MissingError, Remote, StoreError

_TRIES = 20  # records of one key, each because somebody else pushed a graph of it meanwhile
_LARGEST = 8 << 30  # bytes of a file

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Source:
    """A graph to push.

    Attributes:
        manifest: parsed from `text`.
        folder: with its files, which nobody else can change.
        first_uses: on the publisher's machines.
    """

    manifest: Manifest
    text: bytes
    folder: Path
    first_uses: tuple[PublishedUse, ...] = ()


@dataclass(frozen=True)
class Pushed:
    """What pushing a graph did.

    Attributes:
        bytes: of objects that were written; 0: all were there.
        new: whether the store named the graph for the first time.
    """

    bytes: int
    new: bool


class Pusher:
    """Pushes graphs of one publisher to one store.

    Args:
        private: the publisher's key.

    Raises:
        NoCryptographyError: nothing can be signed.
    """

    def __init__(self, remote: Remote, private: bytes) -> None:
        self._remote = remote
        self._private = private
        self.public = ed25519.public_key(private)
        self._withdrawn: frozenset[str] | None = None

    def has(self, manifest: Manifest, text: bytes) -> bool:
        """Whether the key's record names a graph already. Raises StoreError."""
        record = self._record(records.key_digest(manifest.key))
        return record is not None and blake3(text).hexdigest() in {graph.manifest for graph in record.graphs}

    def push(self, source: Source, progress: Progress | None = None) -> Pushed | Reason:
        """Push one graph.

        Args:
            progress: is told of bytes that the store has by now.

        Raises:
            StoreError: the store cannot be read or written.
            OSError: the graph's files cannot be read.
        """
        wrong = check_names(source.manifest)
        if wrong is not None:
            return wrong
        digest, key = blake3(source.text).hexdigest(), records.key_digest(source.manifest.key)
        if digest in self._taken_back():
            return GraphWithdrawn("whose key this is")
        written = 0
        for name, file in source.manifest.files.items():
            written += self._write_object(file.blake3, file.bytes, source.folder / name)
            if progress is not None:
                progress(file.bytes)
        written += self._write_object(digest, len(source.text), source.text)
        signature = publishers.sign(self._private, source.text)
        graph = RemoteGraph(
            manifest=digest, bytes=len(source.text), signature=signature.value, first_uses=source.first_uses
        )
        one = Record(publisher=self.public, key=key, graphs=(graph,))
        name = records.graph_name(self.public, key, digest)
        known = self._read(name, key)
        if known is None or (source.first_uses and known.graphs != one.graphs):
            self._remote.write(name, records.sign(self._private, one))
        self.write_record(key)
        if written < sum(file.bytes for file in source.manifest.files.values()):
            # What was there may have been garbage, which somebody collected before the record named it.
            for file_name, file in source.manifest.files.items():
                written += self._write_object(file.blake3, file.bytes, source.folder / file_name)
        return Pushed(written, known is None)

    def write_record(self, key: str) -> None:
        """Make a key's record of all graphs that the store has for it. Raises StoreError."""
        for _ in range(_TRIES):
            listed = self._listed(key)
            graphs = []
            for name in listed:
                one = self._read(name, key)
                graphs += [*one.graphs] if one is not None else []
            # The latest first: it is the likeliest, and a record has room for so many.
            record = Record(publisher=self.public, key=key, graphs=tuple(graphs[: records.MOST_GRAPHS]))
            if self._record(key) != record:
                data = records.sign(self._private, record)
                if len(data) > records.MOST_BYTES:
                    raise StoreError(StoreBadRecord(self._remote.label, f"more than {records.MOST_BYTES} bytes"))
                self._remote.write(records.record_name(self.public, key), data)
            if self._listed(key) == listed:
                return
        raise StoreError(StoreUnreachable(self._remote.label, "others keep changing it"))

    def write_index(self) -> None:
        """Tell readers that cannot list which keys there are. Raises StoreError."""
        names = map(records.named, self._remote.list(f"records/{self.public}"))
        keys = sorted(one.digest for one in names if one is not None and one.kind == "record")
        index = Index(keys=tuple(keys)).model_dump_json().encode()
        name = records.index_name(self.public)
        try:
            there = self._remote.read(name, records.MOST_INDEX_BYTES, Endless())
        except MissingError:
            there = b""
        if there != index:
            self._remote.write(name, index)

    def withdraw(self, manifests: Iterable[str]) -> Withdrawals:
        """Take graphs back: workers refuse them from their next look at the list. Raises StoreError."""
        before = self._withdrawals()
        everything = before.manifests | {*manifests}
        if everything == before.manifests:
            return before
        after = Withdrawals(publisher=self.public, number=before.number + 1, manifests=everything)
        self._remote.write(records.withdrawn_name(self.public), records.sign_withdrawals(self._private, after))
        self._withdrawn = everything
        keys = set()
        for name in self._remote.list(f"graphs/{self.public}"):
            one = records.named(name)
            if one is not None and one.kind == "graph" and one.digest in everything:
                self._remote.remove(name)
                keys.add(name.split("/")[3])
        for key in sorted(keys):
            self.write_record(key)
        return after

    def write_note(self, name: str, purpose: bytes, statement: str) -> None:
        """Write a statement of another kind than a store's own. Raises StoreError."""
        self._remote.write(name, records.signed(self._private, purpose, statement))

    def read_note(self, name: str, purpose: bytes, most: int) -> str | None:
        """Read such a statement; None where there is none that this publisher signed. Raises StoreError."""
        try:
            data = self._remote.read(name, most, Endless())
            envelope = withdrawals.Envelope.model_validate_json(data)
        except (MissingError, ValidationError):
            return None
        right = ed25519.is_signed(self.public, envelope.value, purpose + envelope.statement.encode())
        return envelope.statement if right else None

    def _listed(self, key: str) -> list[str]:
        """The names of the graphs of a key, the latest first."""
        found = self._remote.list(records.graphs_folder(self.public, key))
        mine = {name: when for name, (_, when) in found.items() if records.named(name) is not None}
        return sorted(mine, key=lambda name: (-mine[name], name))

    def _record(self, key: str) -> Record | None:
        return self._read(records.record_name(self.public, key), key)

    def _read(self, name: str, key: str) -> Record | None:
        """A record that this publisher signed; None where there is none, or another's, which is written over."""
        try:
            data = self._remote.read(name, records.MOST_BYTES, Endless())
        except MissingError:
            return None
        found = records.read(data, self._remote.label, ("", self.public), key)
        return found if isinstance(found, Record) else None

    def _withdrawals(self) -> Withdrawals:
        try:
            data = self._remote.read(records.withdrawn_name(self.public), withdrawals.MOST_BYTES, Endless())
        except MissingError:
            return Withdrawals(publisher=self.public, number=0)
        found = withdrawals.verified(data, self.public)
        if found is None:
            raise StoreError(StoreBadRecord(self._remote.label, "another publisher's withdrawals"))
        return found

    def _taken_back(self) -> frozenset[str]:
        if self._withdrawn is None:
            self._withdrawn = self._withdrawals().manifests
        return self._withdrawn

    def _write_object(self, digest: str, size: int, data: bytes | Path) -> int:
        """Write what has a digest, unless it is there; the bytes that were written."""
        name = records.object_name(digest)
        if not size or self._remote.size(name) == size:
            return 0
        self._remote.write(name, data if isinstance(data, bytes) else read_regular(data, _LARGEST))
        return size
