"""Giving graphs to others: entries that this user may load, signed with a publisher's key, as a bundle."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...common.reasons import BadPublisherName, Reason, SigningKeyRefused, TargetExists, UnreadableManifest
from ..disk import marks
from ..entry import Entry, read
from ..files import replace_text, set_mode, sync
from ..integrity import read_file
from ..layout import GRAPHS_FOLDER
from ..manifest import MANIFEST_FILE
from ..places import valid_place
from ..sources.folder import put
from ..store import Store
from ..trust import ed25519, key_file, publishers
from ..trust.publishers import NAME, PUBLISHER_FILE
from ..trust.signing import SIGNATURE_FILE
from .bundle import BUNDLE_FILE, GRAPH, Listing

TAR_SUFFIX = ".tar"
_MODEL = re.compile(r"[0-9a-z]{1,32}")
_OTHER_MODEL = "unknown"  # the folder of graphs whose own has another name


@dataclass(frozen=True)
class Exported:
    """What became of an entry: `reason` is why it is left out, None where it is in the bundle."""

    folder: Path
    reason: Reason | None = None


def key_path(home: Path, publisher: str = "") -> Path | BadPublisherName:
    """Name the file of a publisher's private key; a user may publish under several names."""
    if not publisher:
        return home / "publisher.key"
    return home / f"publisher-{publisher}.key" if re.fullmatch(NAME, publisher) else BadPublisherName(publisher[:100])


def public_key(path: Path) -> str | SigningKeyRefused | None:
    """Give the public key of a private one; None where there is none. Raises OSError, NoCryptographyError."""
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


def export(store: Store, entries: Iterable[Entry], target: Path, private: bytes) -> Iterator[Exported]:
    """Write entries as a bundle: a tar file where the name ends so, else a folder, which may hold graphs already.

    The same graph of several models is written once.

    Args:
        private: the publisher's key.

    Raises:
        OSError: the bundle cannot be written.
        NoCryptographyError: nothing can be signed.
    """
    written: set[bytes] = set()
    placed: set[str] = set()
    with (_tar if target.suffix == TAR_SUFFIX else _folder)(store, target) as add:
        for entry in entries:
            if entry.text in written:
                continue
            reason: Reason | None = store.signer.judge(entry)
            place = valid_place(entry.manifest.key, entry.manifest)
            model = entry.folder.parents[1].name
            if reason is None and place is None:
                reason = UnreadableManifest("its key names no folder")
            if reason is None and place is not None:
                signature = publishers.sign(private, entry.text).model_dump_json(indent=1)
                if model == GRAPHS_FOLDER:  # of a home, perhaps another one
                    model = next((served.digest for served in marks.models(entry.folder)), _OTHER_MODEL)
                model = model if _MODEL.fullmatch(model) else _OTHER_MODEL
                new = _Signed(entry, f"{model}/{place[0].component}/{place[1]}", signature)
                reason = TargetExists(place[1]) if new.place in placed else add(new)
                if reason is None:
                    written.add(entry.text)
                    placed.add(new.place)
            yield Exported(entry.folder, reason)


@dataclass(frozen=True)
class _Signed:
    """An entry, its folder in the bundle, and the publisher's signature as in its file."""

    entry: Entry
    place: str
    signature: str


_Add = Callable[[_Signed], Reason | None]


@contextlib.contextmanager
def _folder(store: Store, target: Path) -> Iterator[_Add]:
    if not target.exists():
        target.mkdir(parents=True)
        set_mode(target, 0o755)  # whatever the umask
    try:
        yield lambda new: _bake(target, new)
    finally:
        made = target.glob(f"*/*/*/{PUBLISHER_FILE}")
        graphs = sorted("/".join(path.parts[-4:-1]) for path in made)
        graphs = [graph for graph in graphs if re.fullmatch(GRAPH, graph)]  # no hidden one, such as a quarantined one
        if graphs:
            replace_text(target / BUNDLE_FILE, Listing(graphs=tuple(graphs)).model_dump_json(indent=1))
            set_mode(target / BUNDLE_FILE, 0o644)


def _bake(target: Path, new: _Signed) -> Reason | None:
    """Put an entry into a folder by one rename; whoever loads graphs from it sees the old one or the new one."""
    final = target / new.place
    there = read(final)
    same = isinstance(there, Entry) and there.text == new.entry.text
    signed = os.path.lexists(final / SIGNATURE_FILE)
    if signed or final.resolve() == new.entry.folder.resolve():  # in a store: it is signed where it lies, or stays
        if not (signed and same):
            return TargetExists(final.name)
        replace_text(final / PUBLISHER_FILE, new.signature)
        return None
    with contextlib.suppress(OSError):
        if same and (final / PUBLISHER_FILE).read_text() == new.signature:
            return None
    for folder in (final.parents[1], final.parent):
        folder.mkdir(exist_ok=True)
        set_mode(folder, 0o755)  # others are to read it
    return put(new.entry, final.parent, final.name, {PUBLISHER_FILE: new.signature})


@contextlib.contextmanager
def _tar(store: Store, target: Path) -> Iterator[_Add]:
    """Nothing is left where it fails or holds no graph."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    placed: list[str] = []
    try:
        with os.fdopen(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:

                def add(new: _Signed) -> Reason | None:
                    files = {name: read_file(new.entry, name) for name in new.entry.manifest.files}
                    wrong = next((data for data in files.values() if isinstance(data, Reason)), None)
                    if wrong is not None:
                        return wrong
                    for name, data in files.items():
                        assert isinstance(data, bytes)
                        _add(tar, f"{new.place}/{name}", data)
                    _add(tar, f"{new.place}/{MANIFEST_FILE}", new.entry.text)
                    _add(tar, f"{new.place}/{PUBLISHER_FILE}", new.signature.encode())
                    placed.append(new.place)
                    return None

                yield add
                if placed:
                    listing = Listing(graphs=tuple(sorted(placed)))
                    _add(tar, BUNDLE_FILE, listing.model_dump_json(indent=1).encode())
            file.flush()
            sync(file.fileno())
        set_mode(Path(temporary), 0o644)
        if placed:
            Path(temporary).replace(target)
    finally:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a file. Raises OSError where its name is too long for a plain header."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    try:
        tar.addfile(info, io.BytesIO(data))
    except ValueError as error:
        raise OSError(errno.ENAMETOOLONG, str(error)) from error
