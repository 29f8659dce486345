"""What commands do with remote stores besides pushing: pull a publisher's graphs, mirror, collect garbage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from blake3 import blake3
from pydantic import BaseModel, ValidationError

from ...common.errors import in_brief
from ...common.reasons import Reason, StoreBadName, StoreBadRecord, StoreLog, StoreWrongBytes, StoreWrongSignature
from ..disk.listing import made_for_another
from ..manifest import Manifest
from ..store import Store
from ..trust import withdrawals
from . import published_log, records
from .pushing import Progress, write_index
from .records import Publisher
from .remote import Shelf
from .source import Transfer
from .transport import Patience, Remote, StoreError

_COPY_SECONDS = 60.0  # of one file
_MOST_BYTES = {  # of the files of each folder, in the order in which a mirror writes them
    "withdrawn": withdrawals.MOST_BYTES, "objects": 8 << 30, "log": published_log.MOST_BYTES,
    "graphs": records.MOST_BYTES, "records": records.MOST_BYTES, "index": records.MOST_INDEX_BYTES,
}  # fmt: skip
_M = TypeVar("_M", bound=BaseModel)


# Pull -----------------------------------------------------------------------------------------------------------


def pull(
    store: Store,
    remote: Remote,
    publisher: Publisher,
    fits: Callable[[Manifest], bool],
    progress: Progress | None = None,
) -> Iterator[Transfer]:
    """Fetch a trusted publisher's graphs into the local store, so that look-ups of all models find them.

    Args:
        fits: which graphs are wanted.
        progress: is told of bytes.

    Raises:
        StoreError: the store cannot be read; what was fetched before stays, and the next pull goes on.
    """
    local_manifests = {entry.text for entry in store.entries()}
    shelf = Shelf(remote, publisher)
    withdrawn, log = shelf.withdrawn(store.home), None
    for key in shelf.listed():
        try:
            record = shelf.record(key)
            if record is None:  # removed meanwhile
                continue
            log = shelf.log(record, store.home, log)
            for _, graph in shelf.graphs(record, withdrawn, log):
                if isinstance(graph, Reason):
                    yield Transfer(key[:12], "left out", reason=graph)
                elif not fits(graph.manifest):
                    yield Transfer(graph.manifest.label, "for another machine")
                elif graph.text in local_manifests:
                    yield Transfer(graph.manifest.label, "there already")
                elif isinstance(kept := shelf.keep(graph, store.private, progress), Reason):
                    yield Transfer(graph.manifest.label, "left out", reason=kept)
                else:
                    yield Transfer(graph.manifest.label, "pulled", graph.manifest.bytes)
        except StoreError as error:
            if not isinstance(error.reason, StoreBadRecord | StoreWrongBytes | StoreWrongSignature):
                raise
            yield Transfer(key[:12], "left out", reason=error.reason)


def fits_here(manifest: Manifest) -> bool:
    """Tell whether some process of this installation may use a graph, by its versions and its system."""
    target = manifest.key.get("target")
    version = manifest.key.get("format")
    return isinstance(target, dict) and made_for_another(version, target, manifest.at_least) is None


# Mirror ---------------------------------------------------------------------------------------------------------


def mirror(source: Remote, target: Remote, progress: Progress | None = None) -> Iterator[Transfer]:
    """Copy a store file by file, whoever signed what is in it. A copy that was stopped goes on where it was.

    What is made of other files is made anew of those that the copy has, so that it keeps withdrawals and keys of its
    own. Withdrawals come first, and objects before the records that name them; objects are compared with their names.

    Raises:
        StoreError: one of the stores cannot be read or written.
        NoCryptographyError: there are withdrawals, and nothing can be verified.
    """

    def copied(name: str, count: int) -> Transfer:
        if progress is not None:
            progress(count)
        return Transfer(name, "copied" if count else "there already", count)

    withdrawn: dict[str, dict[str, bytes]] = {}
    for folder, most in _MOST_BYTES.items():
        in_target = target.list(folder)
        indexed = []
        for name, (size, _) in sorted(source.list(folder).items()):
            one = records.named(name)
            if one is None or not name.startswith(f"{folder}/"):
                yield Transfer(name, "left out", reason=StoreBadName(source.label, name[:100]))
                continue
            if one.kind == "line":  # the log has it
                continue
            if one.kind == "object" and in_target.get(name, (-1, 0.0))[0] == size:
                yield Transfer(name, "there already")
                continue
            try:
                data = source.read(name, most, Patience(_COPY_SECONDS))
            except StoreError as error:
                if not isinstance(error.reason, StoreBadName):
                    raise
                yield Transfer(name, "left out", reason=error.reason)
                continue
            if data is None:  # removed meanwhile
                continue
            if len(data) > most or (one.kind == "object" and blake3(data).hexdigest() != one.digest):
                yield Transfer(name, "left out", reason=StoreWrongBytes(source.label, name))
            elif folder == "withdrawn":
                listed, right = withdrawals.read(data, one.publisher)
                withdrawn.setdefault(one.publisher, {}).update(listed)
                if not right:
                    yield Transfer(name, "left out", reason=StoreWrongSignature(source.label, one.publisher[:12]))
            elif folder == "log":
                try:
                    yield copied(name, _mirror_log(data, source, target, one.publisher))
                except StoreError as error:
                    if not isinstance(error.reason, StoreLog):
                        raise
                    yield Transfer(name, "left out", reason=error.reason)
            elif folder == "index":
                indexed.append(one.publisher)
            elif name in in_target and target.read(name, len(data)) == data:
                yield Transfer(name, "there already")
            else:
                target.write(name, data)
                yield copied(name, len(data))
        if folder == "withdrawn":
            for public, lines in withdrawn.items():
                yield copied(records.withdrawn_name(public), records.write_withdrawals(target, public, lines))
        for public in indexed:
            yield copied(records.index_name(public), write_index(target, public))


def _mirror_log(data: bytes, source: Remote, target: Remote, public: str) -> int:
    """Add to a log what another store has beyond it; bytes written. Raises StoreError, NoCryptographyError."""
    log, wrong = published_log.read(data, source.label, Publisher(public[:12], public))
    if wrong is not None:
        raise StoreError(wrong)
    writer = published_log.LogWriter(target, public)
    writer.current(log)
    return writer.publish()


# Garbage --------------------------------------------------------------------------------------------------------


@dataclass
class Garbage:
    """What no record of a store names.

    Attributes:
        names: of objects -> bytes.
        kept: bytes of objects that a record names.
        young: objects that nobody names yet and that may belong to somebody who is pushing.
    """

    names: dict[str, int] = field(default_factory=dict)
    kept: int = 0
    young: int = 0


def garbage(remote: Remote, grace: float) -> Garbage:
    """Find the objects that no graph of the store needs. Changes nothing.

    Every manifest that a signed file names is read. Where one cannot be, nothing is garbage, for nobody knows what it
    needs.

    Args:
        grace: seconds that an object must be old, since what no record names may belong to somebody who is pushing.

    Raises:
        StoreError: the store cannot be listed or read, or a graph's manifest is missing or damaged.
    """
    before = time.time() - grace
    objects = remote.list("objects")
    needed: set[str] = set()
    for folder in ("graphs", "records"):
        for name in remote.list(folder):
            if records.named(name) is not None:
                needed |= _needed(remote, name, needed)
    report = Garbage()
    for name, (size, written) in sorted(objects.items()):
        one = records.named(name)
        if one is not None and one.digest in needed:
            report.kept += size
        elif written > before or one is None:
            report.young += one is not None
        else:
            report.names[name] = size
    return report


def _needed(remote: Remote, name: str, needed: set[str]) -> set[str]:
    """The digests of objects that a record, or a graph of one, needs. Raises StoreError."""

    def parsed(model: type[_M], data: str | bytes, of: str) -> _M:
        try:
            return model.model_validate_json(data)
        except ValidationError as error:
            raise StoreError(StoreBadRecord(remote.label, f"{of}: {in_brief(error, 80)}")) from error

    data = remote.read(name, records.MOST_BYTES)
    if data is None:  # removed meanwhile
        return set()
    added: set[str] = set()
    for graph in parsed(records.Record, parsed(withdrawals.Envelope, data, name).statement, name).graphs:
        if graph.manifest not in needed | added:
            text = remote.read(records.object_name(graph.manifest), graph.bytes)
            if text is not None:  # a graph that nobody can load needs nothing
                files = parsed(Manifest, text, graph.manifest[:12]).files.values()
                added |= {graph.manifest, *(file.blake3 for file in files)}
    return added
