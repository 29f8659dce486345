"""Reading and writing the files of a remote store, through fsspec, which comes with torch.

Whatever the protocol, a read takes one request, at most so many bytes, and at most so many seconds: it runs in a thread
of its own, which nobody waits for once its time is over.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from ...common.errors import OneGraphError, in_brief
from ...common.reasons import (
    Reason,
    StoreBadAddress,
    StoreCannotList,
    StoreForbidden,
    StoreNeedsPackage,
    StoreReadOnly,
    StoreRedirects,
    StoreTooSlow,
    StoreUnreachable,
)
from ..files import sync
from .address import Address

log = logging.getLogger("onegraph.graph_cache")

BYTES_PER_SECOND = 1_000_000  # what a store must give at least, beyond the time that any answer may take
_CHUNK = 1 << 20
_STREAMED = ("http", "https", "hf")  # of which fsspec reads a file in one request only where blocks have no size
_FORBIDDEN, _MISSING = (401, 403), (404, 410)
_PACKAGES = {"s3": "s3fs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "gs": "gcsfs"}
_T = TypeVar("_T")


class StoreError(OneGraphError):
    """A store gives nothing that may be used."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


class MissingError(OneGraphError):
    """A store has no file of that name."""


@dataclass
class Patience:
    """Until when a look-up waits. What was signed says how much longer the graph may take."""

    seconds: float
    _until: float = field(init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    def allow(self, count: int) -> None:
        """Wait longer, for so many bytes."""
        self.seconds += count / BYTES_PER_SECOND
        self._until += count / BYTES_PER_SECOND

    @property
    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())


class Endless(Patience):
    """The time of a command that a user looks at and may stop: each file may take a minute, and what its size takes."""

    def __init__(self) -> None:
        super().__init__(60.0)

    @property
    def left(self) -> float:
        return self.seconds

    def allow(self, count: int) -> None:
        """Wait longer for the files that come."""
        self.seconds = max(self.seconds, 60.0 + count / BYTES_PER_SECOND)


@dataclass
class _Call(Generic[_T]):
    """A call in a thread of its own."""

    run: Callable[[threading.Event], _T]
    done: threading.Event = field(default_factory=threading.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    result: list[_T] = field(default_factory=list)
    error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.result.append(self.run(self.given_up))
        except BaseException as error:  # whoever waits is told
            self.error = error
        finally:
            self.done.set()


class Remote:
    """One store. Names of files are relative, with slashes, and made by `names` alone.

    Args:
        address: where it is.
        wait: seconds without a sign of life after which its connections end by themselves.
    """

    def __init__(self, address: Address, wait: float) -> None:
        self.address = address
        self.label = address.label
        self._wait = wait
        self._fs: Any = None
        self._lock = threading.Lock()
        self.requests = 0  # reads so far, of this process
        self.bytes = 0

    def connect(self) -> None:
        """Import what the protocol takes, which is no time of the store's. Raises StoreError."""
        self._open_fs()

    def read(self, name: str, most: int, patience: Patience) -> bytes:
        """Read a file: as many bytes as it has, or one more than `most`.

        Raises:
            MissingError: there is none.
            StoreError: the store does not give it, or not in time.
        """
        self.requests += 1
        data = self._within(patience, lambda given_up: self._read(name, most, given_up))
        self.bytes += len(data)
        return data

    def size(self, name: str) -> int | None:
        """Tell how many bytes a file has; None where there is none. Raises StoreError."""

        def ask(given_up: threading.Event) -> int:
            return int(self._open_fs().info(self._path(name))["size"])

        try:
            return self._within(Endless(), ask)
        except MissingError:
            return None

    def list(self, folder: str) -> dict[str, tuple[int, float]]:
        """List all files below a folder by their names: bytes, and when each was written (0: unknown).

        Raises:
            StoreError: it cannot be listed.
        """
        if self.address.scheme in ("http", "https"):
            raise StoreError(StoreCannotList(self.label))

        def ask(given_up: threading.Event) -> dict[str, Any]:
            fs = self._open_fs()
            fs.invalidate_cache()
            found: dict[str, Any] = fs.find(self._path(folder), detail=True)
            return found

        patience = Endless()
        patience.allow(600 * BYTES_PER_SECOND)
        try:
            found = self._within(patience, ask)
        except MissingError:
            return {}
        begin = len(self._open_fs()._strip_protocol(self._path(""))) + 1
        return {path[begin:]: (int(one.get("size") or 0), _written(one)) for path, one in found.items()}

    def write(self, name: str, data: bytes) -> None:
        """Write a file in one step, over one that is there. Raises StoreError."""
        patience = Endless()
        patience.allow(len(data))
        try:
            self._within(patience, lambda given_up: self._write(name, data))
        except MissingError as error:
            raise StoreError(StoreReadOnly(self.label, "its folder is missing")) from error
        except StoreError as error:
            if isinstance(error.reason, StoreForbidden):
                raise StoreError(StoreReadOnly(self.label, "no permission")) from error
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises StoreError."""
        with contextlib.suppress(MissingError):
            self._within(Endless(), lambda given_up: self._open_fs().rm_file(self._path(name)))

    # ---------------------------------------------------------------------------------------------------------

    def _within(self, patience: Patience, run: Callable[[threading.Event], _T]) -> _T:
        call = _Call(run)
        # A daemon: nobody waits for a store that is silent, not even a process that ends.
        threading.Thread(target=call, name="onegraph-store", daemon=True).start()
        try:
            ended = call.done.wait(patience.left)
        finally:
            call.given_up.set()
        if not ended:
            raise StoreError(StoreTooSlow(self.label, round(patience.seconds, 3)))
        if call.error is None:
            return call.result[0]
        raise self._told(call.error) from call.error

    def _told(self, error: BaseException) -> BaseException:
        """What to raise for what fsspec raised, whose classes depend on the protocol."""
        if isinstance(error, StoreError | MissingError):
            return error
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or status in _MISSING:
            return MissingError()
        if isinstance(error, PermissionError) or status in _FORBIDDEN:
            return StoreError(StoreForbidden(self.label))
        detail = f"status {status}" if isinstance(status, int) else type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            detail = error.strerror
        log.debug("%s: %s", self.label, in_brief(error))  # may hold names and addresses of the machine
        return StoreError(StoreUnreachable(self.label, detail))

    def _open_fs(self) -> Any:
        """The file system. Raises StoreError."""
        with self._lock:
            if self._fs is None:
                self._fs = self._connected()
            return self._fs

    def _connected(self) -> Any:
        scheme = self.address.scheme
        options: dict[str, Any] = {"skip_instance_cache": True}
        package = _PACKAGES.get(scheme)
        try:
            fsspec = importlib.import_module("fsspec")
        except ImportError as error:
            raise StoreError(StoreNeedsPackage(self.label, "fsspec")) from error
        try:
            if package is not None:
                importlib.import_module(package)
            if scheme in ("http", "https"):
                timeout = importlib.import_module("aiohttp").ClientTimeout
                options["client_kwargs"] = {"timeout": timeout(sock_connect=self._wait, sock_read=self._wait)}
            elif scheme == "s3":
                options["config_kwargs"] = {"connect_timeout": self._wait, "read_timeout": self._wait}
                options["use_listings_cache"] = False
            return fsspec.filesystem(scheme, **options)
        except ImportError as error:
            raise StoreError(StoreNeedsPackage(self.label, package or scheme)) from error
        except ValueError as error:  # no such protocol
            raise StoreError(StoreBadAddress(self.label)) from error

    def _path(self, name: str) -> str:
        return f"{self.address.url}/{name}" if name else self.address.url

    def _read(self, name: str, most: int, given_up: threading.Event) -> bytes:
        fs, path, scheme = self._open_fs(), self._path(name), self.address.scheme
        if scheme not in (*_STREAMED, "file"):
            data: bytes = fs.cat_file(path, start=0, end=most + 1)
            return data
        options: dict[str, Any] = {"block_size": 0} if scheme == "hf" else {}
        if scheme in ("http", "https"):
            options = {"block_size": 0, "size": 1, "allow_redirects": False}
        with fs.open(path, "rb", **options) as file:
            status = getattr(getattr(file, "r", None), "status", 200)
            if 300 <= status < 400:
                raise StoreError(StoreRedirects(self.label))
            return b"".join(_chunks(file, most, given_up))

    def _write(self, name: str, data: bytes) -> None:
        if self.address.scheme == "file":
            _replace(Path(self._path(name)), data)
            return
        self._open_fs().pipe_file(self._path(name), data)


def _chunks(file: Any, most: int, given_up: threading.Event) -> Iterator[bytes]:
    left = most + 1
    while left and not given_up.is_set() and (chunk := file.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


def _replace(path: Path, data: bytes) -> None:
    """Write a file that others may read, in one step. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _written(info: dict[str, Any]) -> float:
    found = info.get("mtime") or info.get("LastModified") or info.get("created") or info.get("last_modified")
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else 0.0
