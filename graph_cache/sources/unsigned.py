"""Graphs without a signature, on their way from the machine that compiled them to the one with the publisher's key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pydantic import Base64Bytes, ValidationError

from ...common.errors import in_brief
from ...common.reasons import MissingFile, NotAskedFor, Reason, UnlistedMember, UnreadableManifest
from ..entry import Entry, read
from ..integrity import differs, read_file
from ..manifest import MOST_BYTES, Manifest
from ..store import Store
from .pushing import Pusher, published_uses
from .records import PublishedUse
from .source import Done, parse


@dataclass(frozen=True)
class Unsigned:
    """A graph as a task returns it: bytes, of which nothing is known yet; as JSON they are in base 64.

    Attributes:
        manifest: its bytes.
        files: by name.
        uses: what its first use showed there, as JSON.
    """

    manifest: Base64Bytes
    files: Mapping[str, Base64Bytes]
    uses: tuple[str, ...] = ()


def made_here(store: Store) -> Iterator[Unsigned]:
    """Give the graphs that a store's own key signed."""
    for one in store.disk.entries():
        entry = read(one.path) if one.facts.signed_by == "me" and not one.quarantined else None
        if isinstance(entry, Entry):
            read_files = {name: read_file(entry, name) for name in entry.manifest.files}
            files = {name: data for name, data in read_files.items() if isinstance(data, bytes)}
            if len(files) == len(read_files):
                uses = tuple(use.model_dump_json() for use in published_uses(store, entry))
                yield Unsigned(entry.text, files, uses)


def check(given: Unsigned, expected: Mapping[str, Collection[str]]) -> Manifest | Reason:
    """Say whether a graph is whole: its manifest names what graphs have, and the files are what it lists.

    Args:
        expected: what fields of its key, and of the target in that, may be. One that it lacks is no look-up's.
    """
    if len(given.manifest) > MOST_BYTES:
        return UnreadableManifest(f"more than {MOST_BYTES} bytes")
    graph = parse(given.manifest)
    if isinstance(graph, Reason):
        return graph
    manifest = graph.manifest
    facts = {**manifest.key["target"], **manifest.key}
    for field, wanted in expected.items():
        value = str(facts.get(field, "")).partition("+")[0]  # machines with and without GPUs have other builds of torch
        if field in facts and value not in wanted:
            return NotAskedFor(field, value[:100], " or ".join(wanted))
    for name, listed in manifest.files.items():
        data = given.files.get(name)
        wrong = MissingFile(name) if data is None else differs(name, data, listed)
        if wrong is not None:
            return wrong
    odd = sorted({*given.files} - {*manifest.files})
    return UnlistedMember(odd[0][:100]) if odd else manifest


def publish(given: Unsigned, manifest: Manifest, pusher: Pusher) -> Done:
    """Sign and push a graph that another machine made.

    Args:
        manifest: that `check` gave for it.

    Raises:
        StoreError: the store cannot be read or written.
        OSError: what the publisher took back cannot be remembered here.
    """
    try:
        uses = tuple(PublishedUse.model_validate_json(use) for use in given.uses[:1])
    except ValidationError as error:
        return Done(manifest.label, "left out", reason=UnreadableManifest(in_brief(error)))
    return pusher.push(manifest, given.manifest, given.files, uses)
