"""A store in a folder, as one of fsspec's file systems, whose paths are names in the store.

Whoever can write a store may put links into it. None below its root is followed, so that nothing outside of it is read,
listed or written; folders are held open by handles, so that none becomes a link between a check and what follows.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..files import IrregularFileError, despite_readers, is_plain_folder, sync

_HANDLES = os.name == "posix"  # elsewhere (Windows) making a link takes an administrator, and paths are used
_CLOSED = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _CLOSED
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOSED
_DEEPEST = 5  # folders in each other; the names of a store have four
_HUB = re.compile(r"(.*[/\\](?:models|datasets|spaces)--[^/\\]+)[/\\]snapshots[/\\]")


class BadNameError(IrregularFileError):
    """A name leads to no file of the store: through a link, out of the store, or to a pipe or folder."""


class Folder:
    """The folder of a store. Every method raises BadNameError and OSError."""

    def __init__(self, root: str) -> None:
        self._root = root

    def open(self, name: str, mode: str) -> BinaryIO:
        """Open a file for reading, whatever the mode."""
        with self._opened(name) as (handle, at):
            path, handle = self._file(name, handle, at)
            return os.fdopen(os.open(path, _READ, dir_fd=handle), "rb")

    def info(self, name: str) -> dict[str, Any]:
        """Return a file's size and time, and where it is a link the size of what it leads to."""
        with self._opened(name) as (handle, at):
            path, handle = self._file(name, handle, at)
            status = os.stat(path, dir_fd=handle, follow_symlinks=False)
            return {"size": status.st_size, "mtime": status.st_mtime}

    def find(self, folder: str, detail: bool) -> dict[str, dict[str, Any]]:
        """List all files below a folder, and links, which are not followed."""
        files: dict[str, dict[str, Any]] = {}
        with self._opened(f"{folder}/") as (handle, at):
            for one in os.listdir(at if handle is None else handle):  # noqa: PTH208
                name = f"{folder}/{one}"
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = os.stat(at + one, dir_fd=handle, follow_symlinks=False)
                    if is_plain_folder(status) and name.count("/") < _DEEPEST:
                        files |= self.find(name, detail)
                        continue
                    try:
                        files[name] = self.info(name)
                    except BadNameError:  # reading it tells
                        files[name] = {}
        return files

    def pipe_file(self, name: str, data: bytes, mode: str = "overwrite") -> None:
        """Write a file that others may read, in one step, in place of a link of that name, too.

        Args:
            mode: `create`: unless there is anything of that name, which raises FileExistsError.
        """
        Path(self._root).mkdir(parents=True, exist_ok=True)
        with self._opened(name, make=True) as (handle, at):
            temporary = f"{at}.writing-{secrets.token_hex(8)}"
            try:
                new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED, 0o644, dir_fd=handle)
                with os.fdopen(new, "wb") as file:
                    if hasattr(os, "fchmod"):
                        os.fchmod(new, 0o644)
                    file.write(data)
                    file.flush()
                    sync(new)
                move, final = os.link if mode == "create" else os.replace, at + posixpath.basename(name)
                despite_readers(lambda: move(temporary, final, src_dir_fd=handle, dst_dir_fd=handle))
            finally:  # it has its name by now, or is of no use
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=handle)

    def rm_file(self, name: str) -> None:
        """Remove a file, or a link."""
        with self._opened(name) as (handle, at):
            os.unlink(at + posixpath.basename(name), dir_fd=handle)

    def invalidate_cache(self) -> None:
        """Do nothing: nothing is cached."""

    @contextlib.contextmanager
    def _opened(self, name: str, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """Open the folder of a name: its handle, and what stands before a name in it."""
        handle, at = (os.open(self._root, _FOLDER & ~_CLOSED), "") if _HANDLES else (None, f"{self._root}/")
        try:
            for part in filter(None, posixpath.dirname(name).split("/")):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(at + part, dir_fd=handle)
                status = os.stat(at + part, dir_fd=handle, follow_symlinks=False)
                if part == ".." or not is_plain_folder(status):
                    raise BadNameError(name.rstrip("/"))
                if handle is None:
                    at += f"{part}/"
                else:
                    above, handle = handle, os.open(part, _FOLDER, dir_fd=handle)
                    os.close(above)
            yield handle, at
        finally:
            if handle is not None:
                os.close(handle)

    def _file(self, name: str, handle: int | None, at: str) -> tuple[str, int | None]:
        """Find a file in its folder; or, for a link of the Hub's cache, among the blobs beside the snapshot."""
        path = at + posixpath.basename(name)
        mode = os.stat(path, dir_fd=handle, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            return path, handle
        root = os.path.realpath(self._root)
        if stat.S_ISLNK(mode) and (hub := _HUB.match(root)):
            path = os.path.normpath(Path(root, name).parent / os.readlink(path, dir_fd=handle))
            if Path(path).parent == Path(hub[1], "blobs"):
                return path, None
        raise BadNameError(name)
