"""Graphs without a signature, on their way from the machine that compiled them to the one with the publisher's key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from pydantic import ValidationError

from ...common.errors import in_brief
from ...common.reasons import DigestDiffers, MissingFile, Reason, UnlistedMember, UnreadableManifest, WrongSize
from ..crash import leftovers
from ..entry import Entry, read
from ..file_names import check_names
from ..integrity import read_file
from ..manifest import MOST_BYTES, Manifest
from ..places import valid_place
from ..remote.pushing import Pushed, Pusher, Source
from ..remote.records import PublishedUse
from ..store import Store
from .remote_stores import published_uses


@dataclass(frozen=True)
class Unsigned:
    """A graph as a task returns it: bytes, of which nothing is known yet.

    Attributes:
        manifest: its bytes.
        files: by name.
        uses: what its first use showed there, as JSON.
    """

    manifest: bytes
    files: Mapping[str, bytes]
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


def check(given: Unsigned) -> Manifest | Reason:
    """Say whether a graph is whole: its manifest names what graphs have, and the files are what it lists."""
    if len(given.manifest) > MOST_BYTES:
        return UnreadableManifest(f"more than {MOST_BYTES} bytes")
    try:
        manifest = Manifest.model_validate_json(given.manifest)
    except ValidationError as error:
        return UnreadableManifest(in_brief(error))
    wrong = check_names(manifest)
    if wrong is not None:
        return wrong
    if valid_place(manifest.key, manifest) is None:
        return UnreadableManifest("its key names no folder")
    for name, wanted in manifest.files.items():
        data = given.files.get(name)
        if data is None:
            return MissingFile(name)
        if len(data) != wanted.bytes:
            return WrongSize(name, len(data), wanted.bytes)
        if blake3(data).hexdigest() != wanted.blake3:
            return DigestDiffers(name)
    odd = sorted({*given.files} - {*manifest.files})
    return UnlistedMember(odd[0][:100]) if odd else manifest


def publish(given: Unsigned, pusher: Pusher, home: Path) -> Pushed | Reason:
    """Check, sign and push a graph that another machine made.

    Args:
        home: this user's graph folder.

    Raises:
        StoreError: the store cannot be read or written.
        OSError: there is no room here for its files.
    """
    manifest = check(given)
    if isinstance(manifest, Reason):
        return manifest
    try:
        uses = tuple(PublishedUse.model_validate_json(use) for use in given.uses[:1])
    except ValidationError as error:
        return UnreadableManifest(in_brief(error))
    with leftovers.owned_folder(None) as folder:
        for name in manifest.files:
            (folder / name).write_bytes(given.files[name])
        return pusher.push(Source(manifest, given.manifest, folder, uses))
