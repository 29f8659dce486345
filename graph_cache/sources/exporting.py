"""Giving graphs to others: entries that this user may load, signed with a publisher's key, as a bundle."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...common.reasons import BadPublisherName, Reason, SigningKeyRefused, TargetExists
from ..copies import put
from ..disk import marks
from ..entry import Entry, read
from ..files import open_regular, replace_text, set_mode, sync
from ..key import GraphKey
from ..layout import GRAPHS_FOLDER, entry_name, key_of
from ..manifest import MANIFEST_FILE
from ..store import Store
from ..trust import ed25519, key_file, publishers
from ..trust.publishers import NAME, PUBLISHER_FILE
from ..trust.signing import SIGNATURE_FILE
from .bundle import BUNDLE_FILE, GRAPH, Listing
from .source import Transfer

TAR_SUFFIX = ".tar"
_MODEL = re.compile(r"[0-9a-z]{1,32}")
_OTHER_MODEL = "unknown"  # the folder of graphs whose own has another name


def key_path(home: Path, publisher: str = "") -> Path | BadPublisherName:
    """Name the file of a publisher's private key; a user may publish under several names."""
    if not publisher:
        return home / "publisher.key"
    return home / f"publisher-{publisher}.key" if re.fullmatch(NAME, publisher) else BadPublisherName(publisher[:100])


def public_key(path: Path) -> str | SigningKeyRefused | None:
    """Return the public key of a private one; None where there is none. Raises OSError, NoCryptographyError."""
    key = key_file.read(path)
    return ed25519.public_key(key) if isinstance(key, bytes) else key


def find(folder: Path) -> Iterator[Entry]:
    """Iterate over the entries in a folder: one with checkpoints, one of graphs, or a single entry's."""
    for depth in range(5):
        for manifest in sorted(folder.glob("*/" * depth + MANIFEST_FILE)):
            if not any(part.startswith(".") for part in manifest.relative_to(folder).parts):
                entry = read(manifest.parent)
                if isinstance(entry, Entry):
                    yield entry


def why_not(store: Store, entry: Entry) -> Reason | None:
    """Tell why an entry is not given to others: this user may not load it, or its key is none."""
    key = key_of(entry.manifest)
    return store.signer.judge(entry) or (key if isinstance(key, Reason) else None)


def export(store: Store, entries: Iterable[Entry], target: Path, private: bytes) -> Iterator[Transfer]:
    """Write entries as a bundle: a tar file where the name ends so, else a folder, which may hold graphs already.

    The same graph of several models is written once. A tar file appears by one rename, made of a folder beside it that
    is gone then; there is none where something fails, or where it would hold no graph.

    Args:
        private: the publisher's key.

    Raises:
        OSError: the bundle cannot be written.
        NoCryptographyError: nothing can be signed.
    """
    if target.suffix != TAR_SUFFIX:
        if not target.exists():
            target.mkdir(parents=True)
            set_mode(target, 0o755)  # whatever the umask
        yield from _fill(store, entries, target, private)
        return
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        yield from _fill(store, entries, Path(folder), private)
        if (Path(folder) / BUNDLE_FILE).exists():
            _pack(Path(folder), target)


def _fill(store: Store, entries: Iterable[Entry], target: Path, private: bytes) -> Iterator[Transfer]:
    written: set[bytes] = set()
    placed: set[Path] = set()
    try:
        for entry in entries:
            if entry.text in written:
                continue
            reason, key = why_not(store, entry), key_of(entry.manifest)
            if reason is None and isinstance(key, GraphKey):
                final = target / _model(entry) / key.component / entry_name(key, entry.manifest)
                signature = publishers.sign(private, entry.text).model_dump_json(indent=1)
                reason = TargetExists(final.name) if final in placed else _put(entry, final, signature)
                if reason is None:
                    written.add(entry.text)
                    placed.add(final)
            yield Transfer(str(entry.folder), "left out" if reason else "exported", reason=reason)
    finally:
        made = target.glob(f"*/*/*/{PUBLISHER_FILE}")
        graphs = sorted("/".join(path.parts[-4:-1]) for path in made)
        graphs = [graph for graph in graphs if re.fullmatch(GRAPH, graph)]  # no hidden one, such as a quarantined one
        if graphs:
            replace_text(target / BUNDLE_FILE, Listing(graphs=tuple(graphs)).model_dump_json(indent=1))
            set_mode(target / BUNDLE_FILE, 0o644)


def _model(entry: Entry) -> str:
    """Name the folder that a bundle has for an entry's model."""
    name = entry.folder.parents[1].name
    if name == GRAPHS_FOLDER:  # of a home, perhaps another one
        name = next((served.digest for served in marks.models(entry.folder)), _OTHER_MODEL)
    return name if _MODEL.fullmatch(name) else _OTHER_MODEL


def _put(entry: Entry, final: Path, signature: str) -> Reason | None:
    """Put an entry into a folder by one rename; whoever loads graphs from it sees the old one or the new one."""
    existing = read(final)
    same = isinstance(existing, Entry) and existing.text == entry.text
    signed = os.path.lexists(final / SIGNATURE_FILE)
    if signed or final.resolve() == entry.folder.resolve():  # in a store: it is signed where it lies, or stays
        if not (signed and same):
            return TargetExists(final.name)
        replace_text(final / PUBLISHER_FILE, signature)
        return None
    with contextlib.suppress(OSError):
        if same and (final / PUBLISHER_FILE).read_text() == signature:
            return None
    for folder in (final.parents[1], final.parent):
        folder.mkdir(exist_ok=True)
        set_mode(folder, 0o755)  # others are to read it
    return put(entry, final.parent, final.name, {PUBLISHER_FILE: signature})


def _pack(folder: Path, target: Path) -> None:
    """Make a tar file of a bundle in a folder. Raises OSError, also where a name is too long for a plain header."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    temporary = folder / target.name
    with temporary.open("xb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in files:
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = path.stat().st_size
                try:
                    with open_regular(path) as reading:
                        tar.addfile(info, reading)
                except ValueError as error:
                    raise OSError(errno.ENAMETOOLONG, str(error)) from error
        file.flush()
        sync(file.fileno())
    set_mode(temporary, 0o644)
    temporary.replace(target)
