"""Fetching a graph from one remote store: record, manifest, files, each verified before the next is asked for.

1. The record of a trusted publisher for the key is one request. It is parsed once its signature is found right.
2. The manifest is that of its digest, signed by the same publisher, for the very key that was asked for.
3. The files go into a folder that is closed to others, each compared with the size and digest in the manifest.

Nothing is asked for by a name that the store gave: names are made of digests that were signed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from pydantic import ValidationError

from ...common.errors import in_brief
from ...common.reasons import (
    NeedsCryptography,
    Reason,
    StoreBadName,
    StoreBadRecord,
    StoreGraphNotKept,
    StoreGraphRefused,
    StoreGraphWithdrawn,
    StoreIncomplete,
    StoreOtherKey,
    StoreWrongBytes,
    StoreWrongSignature,
    UnreadableManifest,
)
from ..entry import Entry
from ..file_names import check_names
from ..home import Home, Verified
from ..manifest import MANIFEST_FILE, FileRecord, Manifest
from ..places import valid_place
from ..trust import ed25519, publishers, withdrawals
from ..trust.publishers import PUBLISHER_FILE, Published, PublisherSignature
from . import records, taken_back
from .records import Index, Record, RemoteGraph
from .transport import Patience, Remote, StoreError

log = logging.getLogger("onegraph.graph_cache")


@dataclass(frozen=True)
class Publisher:
    """A trusted publisher: the name that this user gave, and the public key."""

    name: str
    key: str


@dataclass(frozen=True)
class Fetched:
    """A graph whose manifest was verified; its files are still to come.

    Attributes:
        text: the manifest's bytes.
        signature: the publisher's over it.
    """

    publisher: Publisher
    graph: RemoteGraph
    manifest: Manifest
    text: bytes
    signature: PublisherSignature


def find_record(remote: Remote, publisher: Publisher, key: str, patience: Patience) -> Record | None:
    """Read which graphs a publisher has for a key: one request. None where the store has none.

    Raises:
        StoreError: the store does not tell, or what it tells is not the publisher's.
    """
    data = remote.read(records.record_name(publisher.key, key), records.MOST_BYTES, patience)
    if data is None:
        return None
    found = records.read(data, remote.label, (publisher.name, publisher.key), key)
    if isinstance(found, Record):
        return found
    raise StoreError(found)


def refresh_withdrawals(remote: Remote, publisher: Publisher, home: Path, patience: Patience) -> frozenset[str]:
    """Read which graphs a publisher takes back, and remember it; those that are known to be.

    That is one request, and another where the store can be listed. Whatever a store lacks changes nothing.

    Raises:
        StoreError: the store does not tell, or what it tells is not the publisher's.
    """
    known, wrong = withdrawals.known(home, publisher.key), False
    try:
        for found, right in taken_back.read(remote, publisher.key, patience, known):
            with contextlib.suppress(OSError):  # the next process asks again
                withdrawals.remember(home, publisher.key, found)
            known, wrong = known | found.keys(), wrong or not right
    except ed25519.NoCryptographyError as error:
        raise StoreError(NeedsCryptography()) from error
    if wrong:
        raise StoreError(StoreWrongSignature(remote.label, publisher.name))
    return known


def keys(remote: Remote, publisher: Publisher, patience: Patience) -> list[str]:
    """The digests of the keys that a publisher has graphs for. Raises StoreError."""
    if remote.can_list:
        names = map(records.named, remote.list(f"records/{publisher.key}", patience))
        return sorted(one.digest for one in names if one is not None and one.kind == "record")
    try:
        data = remote.read(records.index_name(publisher.key), records.MOST_INDEX_BYTES, patience)
        return [] if data is None else [*Index.model_validate_json(data).keys]
    except ValidationError as error:
        bad = next((str(one["input"]) for one in error.errors() if one["type"] == "string_pattern_mismatch"), None)
        wrong: Reason = StoreBadRecord(remote.label, in_brief(error, 80))
        raise StoreError(wrong if bad is None else StoreBadName(remote.label, bad[:100])) from error


def manifests(
    remote: Remote,
    publisher: Publisher,
    record: Record,
    withdrawn: frozenset[str],
    patience: Patience,
) -> Iterator[Fetched | Reason]:
    """Read and verify the manifests that a record names, one request each; or tell why one is refused.

    Raises:
        StoreError: the store does not give them.
    """
    for graph in record.graphs:
        if graph.manifest in withdrawn:
            yield StoreGraphWithdrawn(remote.label, publisher.name)
            continue
        text = _object(remote, MANIFEST_FILE, FileRecord(bytes=graph.bytes, blake3=graph.manifest), patience)
        yield _verified(remote, publisher, record.key, graph, text)


def _verified(remote: Remote, publisher: Publisher, key: str, graph: RemoteGraph, text: bytes) -> Fetched | Reason:
    signature = PublisherSignature(key=publisher.key, value=graph.signature)
    found = publishers.judge(signature, text, {publisher.name: publisher.key})
    if isinstance(found, NeedsCryptography):
        return found
    if not isinstance(found, Published):
        return StoreWrongSignature(remote.label, publisher.name)
    try:
        manifest = Manifest.model_validate_json(text)
    except (ValidationError, MemoryError) as error:
        return StoreGraphRefused(remote.label, UnreadableManifest(in_brief(error)))
    if records.key_digest(manifest.key) != key:
        return StoreOtherKey(remote.label)
    wrong = check_names(manifest)
    if wrong is not None:
        return StoreGraphRefused(remote.label, wrong)
    return Fetched(publisher, graph, manifest, text, signature)


def keep(
    remote: Remote, fetched: Fetched, home: Home, patience: Patience, progress: Callable[[int], None] | None = None
) -> Entry | Reason:
    """Read a graph's files, one request each, and make it an entry of the home.

    Args:
        progress: is told of bytes.

    Raises:
        StoreError: one is missing, or is not what was signed.
    """
    place = valid_place(fetched.manifest.key, fetched.manifest)
    if place is None:
        return StoreGraphRefused(remote.label, UnreadableManifest("its key names no folder"))
    try:
        with home.staging() as folder:
            for name, wanted in fetched.manifest.files.items():
                data = _object(remote, name, wanted, patience)
                (folder / name).write_bytes(data)
                if progress is not None:
                    progress(len(data))
            signatures = {PUBLISHER_FILE: fetched.signature.model_dump_json(indent=1)}
            return home.keep(Verified(place[0], folder, fetched.manifest, fetched.text, signatures, fetched=True))
    except OSError as error:
        return StoreGraphNotKept(remote.label, in_brief(error))


def _object(remote: Remote, file: str, wanted: FileRecord, patience: Patience) -> bytes:
    """Read what has a digest. Raises StoreError."""
    if not wanted.bytes:
        return b""
    patience.allow(wanted.bytes)
    data = remote.read(records.object_name(wanted.blake3), wanted.bytes, patience)
    if data is None:
        raise StoreError(StoreIncomplete(remote.label, file))
    if len(data) != wanted.bytes or blake3(data).hexdigest() != wanted.blake3:
        raise StoreError(StoreWrongBytes(remote.label, file))
    return data


def trusted(found: Mapping[str, str]) -> list[Publisher]:
    """The publishers that a user trusts, in the order of their names."""
    return [Publisher(name, key) for name, key in sorted(found.items())]
