"""What commands do with remote stores: push this user's graphs, pull a publisher's, mirror, collect garbage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from blake3 import blake3
from pydantic import ValidationError

from ...common.errors import in_brief
from ...common.reasons import (
    Reason,
    StoreBadName,
    StoreBadRecord,
    StoreWrongBytes,
    StoreWrongSignature,
    UnreadableManifest,
)
from ..disk.listing import Here
from ..entry import Entry
from ..integrity import check
from ..key import FORMAT
from ..manifest import Manifest
from ..places import valid_place
from ..remote import fetching, records, taken_back
from ..remote.fetching import Fetched, Publisher
from ..remote.pushing import Pushed, Pusher, Source, write_index
from ..remote.records import PublishedUse
from ..remote.transport import Endless, Remote, StoreError
from ..store import Store
from ..trust import withdrawals

GRACE = 24 * 3600.0  # seconds in which what no record names may belong to somebody who is pushing
_MOST_BYTES = {  # of the files of each folder, in the order in which a mirror writes them
    "withdrawn": withdrawals.MOST_BYTES, "objects": 8 << 30, "graphs": records.MOST_BYTES,
    "records": records.MOST_BYTES, "index": records.MOST_INDEX_BYTES,
}  # fmt: skip

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Done:
    """What became of a graph, or of a file of a store.

    Attributes:
        name: of its folder, or in the store.
        did: in a word.
        bytes: that were moved.
        reason: why it was left out.
    """

    name: str
    did: str
    bytes: int = 0
    reason: Reason | None = None


# Push -----------------------------------------------------------------------------------------------------------


def push(store: Store, entries: Iterable[Entry], pusher: Pusher, progress: Progress | None = None) -> Iterator[Done]:
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
        uses = published_uses(store, entry)
        reason: Reason | None = store.signer.judge(entry)
        if reason is None and valid_place(entry.manifest.key, entry.manifest) is None:
            reason = UnreadableManifest("its key names no folder")
        if reason is None and not uses and pusher.has(entry.manifest, entry.text):
            if progress is not None:
                progress(entry.bytes)
            yield Done(entry.folder.name, "there already")
            continue
        if reason is None:
            state = check(entry)
            done = (
                state
                if isinstance(state, Reason)
                else pusher.push(Source(entry.manifest, entry.text, entry.folder, uses), progress)
            )
            if isinstance(done, Pushed):
                yield Done(entry.folder.name, "pushed" if done.new else "there already", done.bytes)
                continue
            reason = done
        yield Done(entry.folder.name, "left out", reason=reason)
    pusher.write_index()


def published_uses(store: Store, entry: Entry) -> tuple[PublishedUse, ...]:
    """What this machine's first use of an entry showed, for those who believe its publisher."""
    used = store.first_use(entry)
    target = entry.manifest.key.get("target")
    if not used.checked or used.compiled_ms is None or not isinstance(target, dict):
        return ()
    facts = used.model_dump(include={"driver", "environment", "checked", "eager_ms", "compiled_ms", "size"})
    return (PublishedUse(target=target, **facts),)


# Pull -----------------------------------------------------------------------------------------------------------


def pull(
    store: Store,
    remote: Remote,
    publisher: Publisher,
    fits: Callable[[Manifest], bool],
    progress: Progress | None = None,
) -> Iterator[Done]:
    """Fetch a trusted publisher's graphs into the local store, so that look-ups of all models find them.

    Args:
        fits: which graphs are wanted.
        progress: is told of bytes.

    Raises:
        StoreError: the store cannot be read; what was fetched before stays, and the next pull goes on.
    """
    there = {entry.text for entry in store.entries()}
    withdrawn = fetching.refresh_withdrawals(remote, publisher, store.home, Endless())
    for key in fetching.keys(remote, publisher, Endless()):
        try:
            record = fetching.find_record(remote, publisher, key, Endless())
            if record is None:  # removed meanwhile
                continue
            for found in fetching.manifests(remote, publisher, record, withdrawn, Endless()):
                if isinstance(found, Reason):
                    yield Done(key[:12], "left out", reason=found)
                elif not fits(found.manifest):
                    yield Done(found.manifest.label, "for another machine")
                elif found.text in there:
                    yield Done(found.manifest.label, "there already")
                else:
                    yield _keep(store, remote, found, progress)
        except StoreError as error:
            if not isinstance(error.reason, StoreBadRecord | StoreWrongBytes | StoreWrongSignature):
                raise
            yield Done(key[:12], "left out", reason=error.reason)


def fits_here(manifest: Manifest) -> bool:
    """Whether some process of this installation may use a graph, by its versions and its system."""
    here, target = Here.now(), manifest.key.get("target")
    if manifest.key.get("format") != FORMAT or not isinstance(target, dict):
        return False
    known = {"torch": here.torch, "platform": here.platform, "machine": here.machine}
    return all(not value or target.get(name, value) == value for name, value in known.items())


def _keep(store: Store, remote: Remote, found: Fetched, progress: Progress | None) -> Done:
    kept = fetching.keep(remote, found, store.private, Endless(), progress)
    if isinstance(kept, Reason):
        return Done(found.manifest.label, "left out", reason=kept)
    return Done(found.manifest.label, "pulled", sum(file.bytes for file in found.manifest.files.values()))


# Mirror ---------------------------------------------------------------------------------------------------------


def mirror(source: Remote, target: Remote, progress: Progress | None = None) -> Iterator[Done]:
    """Copy a store file by file, whoever signed what is in it. A copy that was stopped goes on where it was.

    What is made of other files is made anew of those that the copy has, so that it keeps withdrawals and keys of its
    own. Withdrawals come first, and objects before the records that name them; objects are compared with their names.

    Raises:
        StoreError: one of the stores cannot be read or written.
        NoCryptographyError: there are withdrawals, and nothing can be verified.
    """
    withdrawn: dict[str, dict[str, bytes]] = {}
    for folder, most in _MOST_BYTES.items():
        there = target.list(folder)
        indexed = []
        for name, (size, _) in sorted(source.list(folder).items()):
            one = records.named(name)
            if one is None or not name.startswith(f"{folder}/"):
                yield Done(name, "left out", reason=StoreBadName(source.label, name[:100]))
                continue
            if one.kind == "object" and there.get(name, (-1, 0.0))[0] == size:
                yield Done(name, "there already")
                continue
            try:
                data = source.read(name, most, Endless())
            except StoreError as error:
                if not isinstance(error.reason, StoreBadName):
                    raise
                yield Done(name, "left out", reason=error.reason)
                continue
            if data is None:  # removed meanwhile
                continue
            if len(data) > most or (one.kind == "object" and blake3(data).hexdigest() != one.digest):
                yield Done(name, "left out", reason=StoreWrongBytes(source.label, name))
            elif folder == "withdrawn":
                found, right = withdrawals.read(data, one.publisher)
                withdrawn.setdefault(one.publisher, {}).update(found)
                if not right:
                    yield Done(name, "left out", reason=StoreWrongSignature(source.label, one.publisher[:12]))
            elif folder == "index":
                indexed.append(one.publisher)
            elif name in there and target.read(name, len(data), Endless()) == data:
                yield Done(name, "there already")
            else:
                target.write(name, data)
                yield _copied(name, len(data), progress)
        if folder == "withdrawn":
            for public, lines in withdrawn.items():
                yield _copied(records.withdrawn_name(public), taken_back.write(target, public, lines), progress)
        for public in indexed:
            yield _copied(records.index_name(public), write_index(target, public), progress)


def _copied(name: str, count: int, progress: Progress | None) -> Done:
    if progress is not None:
        progress(count)
    return Done(name, "copied" if count else "there already", count)


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


def garbage(remote: Remote, grace: float = GRACE) -> Garbage:
    """Find the objects that no graph of the store needs. Changes nothing.

    Every manifest that a signed file names is read. Where one cannot be, nothing is garbage, for nobody knows what it
    needs.

    Args:
        grace: seconds that an object must be old.

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
    found = Garbage()
    for name, (size, written) in sorted(objects.items()):
        one = records.named(name)
        if one is not None and one.digest in needed:
            found.kept += size
        elif written > before or one is None:
            found.young += one is not None
        else:
            found.names[name] = size
    return found


def _needed(remote: Remote, name: str, known: set[str]) -> set[str]:
    """The digests of objects that a record, or a graph of one, needs. Raises StoreError."""
    data = remote.read(name, records.MOST_BYTES, Endless())
    if data is None:  # removed meanwhile
        return set()
    try:
        envelope = withdrawals.Envelope.model_validate_json(data)
        record = records.Record.model_validate_json(envelope.statement)
    except ValidationError as error:
        raise StoreError(StoreBadRecord(remote.label, f"{name}: {in_brief(error, 80)}")) from error
    found: set[str] = set()
    for graph in record.graphs:
        if graph.manifest in known | found:
            continue
        text = remote.read(records.object_name(graph.manifest), graph.bytes, Endless())
        if text is None:
            continue  # a graph that nobody can load needs nothing
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise StoreError(StoreBadRecord(remote.label, f"{graph.manifest[:12]}: {in_brief(error, 80)}")) from error
        found |= {graph.manifest, *(file.blake3 for file in manifest.files.values())}
    return found
