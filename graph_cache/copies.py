"""Copies of entries beside checkpoints and in saved pipelines, in folders that others may write.

Each appears by one rename, and is never written or removed through a link of somebody else's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..common.reasons import Damaged, UnreadableNow
from .crash.leftovers import OWNER_FILE, is_left_behind, remove
from .crash.liveness import new_nonce, owning
from .entry import Entry
from .files import is_own, read_regular, set_mode, sync_folder, write_synced
from .home import orphans
from .integrity import Sound, check, copy_files
from .layout import listed_now, visible
from .manifest import MANIFEST_FILE, MOST_BYTES
from .trust.publishers import PUBLISHER_FILE
from .trust.signing import SIGNATURE_FILE, FaultyEntry, Signer, TrustedEntry, read_trusted

_WRITING = ".writing-"  # a copy that is not whole yet


def signatures_of(entry: Entry) -> dict[str, str]:
    """Read those of an entry's signatures that are there. Raises OSError."""
    texts = {}
    for name in (SIGNATURE_FILE, PUBLISHER_FILE):
        with contextlib.suppress(FileNotFoundError):
            texts[name] = read_regular(entry.folder / name, MOST_BYTES).decode(errors="replace")
    return texts


def write_copy(entry: Entry, location: Path, signer: Signer) -> Path | Damaged | UnreadableNow | None:
    """Write a copy of an entry of the home into a folder such as `photo.graphs/<model hash>`.

    Returns:
        The copy; what is wrong with the entry; None where it is there already.

    Raises:
        OSError: it cannot be written, or somebody else's link leads there.
    """
    component = location / str(entry.manifest.key["component"])
    with _opened(component) as within:
        name = _free_name(entry, within, signer)
        wrong = None if name is None else put(entry, within, name, signatures_of(entry))
        return wrong if wrong is not None or name is None else component / name


def put(entry: Entry, component: Path, name: str, signatures: Mapping[str, str]) -> Damaged | UnreadableNow | None:
    """Write a verified copy of an entry, by one rename and over what has its name. Raises OSError."""
    _sweep(component)
    writing = component / f"{_WRITING}{new_nonce()}"
    writing.mkdir(mode=0o755)
    try:
        with owning(writing / OWNER_FILE):
            wrong = copy_files(entry, writing)
            if wrong is not None:
                return wrong
            for file, text in {**signatures, MANIFEST_FILE: entry.text.decode()}.items():
                write_synced(writing / file, text)
        (writing / OWNER_FILE).unlink(missing_ok=True)
        for path in (*writing.iterdir(), writing):
            set_mode(path, 0o755 if path == writing else 0o644)  # whatever the umask: others may read it
        if os.path.lexists(component / name):
            (component / name).rename(component / f"{_WRITING}{new_nonce()}-old")
        writing.rename(component / name)
        sync_folder(component)
    finally:
        remove(writing)
    _sweep(component, "-old")
    return None


def _free_name(entry: Entry, component: Path, signer: Signer) -> str | None:
    """Choose a name for a copy: the entry's own, or one with this user's key where that is another's."""
    key_id = signer.sign(b"").key
    plain = entry.folder.name.removesuffix(f"-{key_id}")  # as it is in the home, too, beside another's
    with_key = f"{plain}-{key_id}"
    for name in (plain, with_key):
        verdict = read_trusted(component / name, signer) if os.path.lexists(component / name) else None
        if (
            isinstance(verdict, TrustedEntry)
            and verdict.entry.text == entry.text
            and isinstance(check(verdict.entry), Sound)
        ):
            return None
        mine = isinstance(verdict, TrustedEntry) and verdict.trusted.publisher is None
        if verdict is None or mine or isinstance(verdict, FaultyEntry) or name == with_key:
            for orphan in filter(is_own, orphans(component / plain, signer)) if name == with_key else ():
                shutil.rmtree(orphan, ignore_errors=True)
            return name
    return None


def sweep(location: Path) -> None:
    """Remove what dead processes left in a folder such as `photo.graphs/<model hash>`. Never raises OSError."""
    for name in visible(listed_now(location)):
        if any(one.startswith(_WRITING) for one in listed_now(location / name)):
            with contextlib.suppress(OSError), _opened(location / name) as component:
                _sweep(component)


def _sweep(component: Path, suffix: str = "") -> None:
    """Remove this user's unfinished copies of processes that are gone. Never raises OSError."""
    for name in (one for one in listed_now(component) if one.startswith(_WRITING)):
        with contextlib.suppress(OSError):
            left = (suffix and name.endswith(suffix)) or is_left_behind(component / name)
            if left and is_own(component / name):
                remove(component / name)


@contextlib.contextmanager
def _opened(component: Path) -> Iterator[Path]:
    """Make `<stem>.graphs/<model hash>/<component>` and give a path to the very folder, whatever takes its name.

    Each is opened without following links, so that somebody who may write the models' folder leads nowhere else.

    Raises:
        OSError: one of them is a link, or cannot be made.
    """
    base = component.parents[2]
    if os.name != "posix" or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        component.mkdir(parents=True, exist_ok=True)
        yield component
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    base.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        handle = os.open(base, flags)
        held.callback(os.close, handle)
        for name in component.relative_to(base).parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=handle)
            handle = _enter(name, handle, flags)
            held.callback(os.close, handle)
        yield Path(f"/proc/self/fd/{handle}")


def _enter(name: str, handle: int, flags: int) -> int:
    """Open a folder in an open one; through a link only where it is this user's own. Raises OSError."""
    path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)  # whatever takes its name now
    try:
        status = os.fstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return os.open(".", flags, dir_fd=path)
        if status.st_uid not in (0, os.geteuid()):
            raise OSError(errno.ELOOP, f"{name} is another user's link")
        return os.open(os.readlink("", dir_fd=path), flags, dir_fd=handle)
    finally:
        os.close(path)


def remove_copy(folder: Path, signer: Signer) -> bool:
    """Remove a copy that this user's installation signed; whether it is gone. Never raises OSError."""
    verdict = read_trusted(folder, signer)
    if isinstance(verdict, TrustedEntry) and verdict.trusted.publisher is None:
        with contextlib.suppress(OSError), _opened(folder.parent) as component:
            shutil.rmtree(component / folder.name, ignore_errors=True)
            for empty in (folder.parent, folder.parents[1], folder.parents[2]):
                empty.rmdir()
    return not os.path.lexists(folder)
