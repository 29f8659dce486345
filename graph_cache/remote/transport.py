"""Reading and writing the files of a remote store, through fsspec, which comes with torch.

Whatever the protocol, a read takes one request, at most so many bytes, and at most so many seconds: it runs in a thread
of its own, which nobody waits for once its time is over.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from ...common.errors import OneGraphError, in_brief
from ...common.reasons import (
    Reason,
    StoreBadName,
    StoreCannotList,
    StoreForbidden,
    StoreNeedsPackage,
    StoreReadOnly,
    StoreRedirects,
    StoreTooSlow,
    StoreUnreachable,
)
from .address import Address
from .folder import BadNameError, Folder

log = logging.getLogger("onegraph.graph_cache")

BYTES_PER_SECOND = 1_000_000  # what a store must give at least, beyond the time that any answer may take
_CHUNK = 1 << 20
_TRIES = 100  # of a file that is made of others, each because somebody else wrote meanwhile
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
    """A store has no file of that name, or no such folder."""


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

    @property
    def can_list(self) -> bool:
        """Whether the protocol has a way to list files."""
        return self.address.scheme not in ("http", "https")

    def connect(self) -> None:
        """Import what the protocol takes, which is no time of the store's and asks nobody. Raises StoreError."""
        self._imported()

    def read(self, name: str, most: int, patience: Patience) -> bytes | None:
        """Read a file: as many bytes as it has, or one more than `most`; None where there is none.

        Raises:
            StoreError: the store does not give it, or not in time.
        """
        self.requests += 1
        with contextlib.suppress(MissingError):
            data = self._within(patience, lambda given_up: self._read(name, most, given_up))
            self.bytes += len(data)
            return data
        return None

    def size(self, name: str) -> int | None:
        """Tell how many bytes a file has; None where there is none. Raises StoreError."""

        def ask(given_up: threading.Event) -> int:
            return int(self._open_fs().info(self._path(name))["size"])

        with contextlib.suppress(MissingError):
            return self._within(Endless(), ask)
        return None

    def list(self, folder: str, patience: Patience | None = None) -> dict[str, tuple[int, float]]:
        """List all files below a folder by their names: bytes, and when each was written (0: unknown).

        Names are as the store tells them; `records.named` knows which are such as a store has.

        Args:
            patience: None: that of a command.

        Raises:
            StoreError: it cannot be listed.
        """
        if not self.can_list:
            raise StoreError(StoreCannotList(self.label))

        def ask(given_up: threading.Event) -> dict[str, tuple[int, float]]:
            fs = self._open_fs()
            fs.invalidate_cache()
            begin = len(fs._strip_protocol(self.address.url)) + 1 if self.address.scheme != "file" else 0
            found = fs.find(self._path(folder), detail=True).items()
            return {path[begin:]: (int(one.get("size") or 0), _written(one)) for path, one in found}

        if patience is None:
            patience = Endless()
            patience.allow(600 * BYTES_PER_SECOND)
        with contextlib.suppress(MissingError):
            return self._within(patience, ask)
        return {}

    def write(self, name: str, data: bytes) -> None:
        """Write a file in one step, over one that is there. Raises StoreError."""
        patience = Endless()
        patience.allow(len(data))
        try:
            self._within(patience, lambda given_up: self._open_fs().pipe_file(self._path(name), data))
        except MissingError as error:
            raise StoreError(StoreReadOnly(self.label, "its folder is missing")) from error
        except StoreError as error:
            if isinstance(error.reason, StoreForbidden):
                raise StoreError(StoreReadOnly(self.label, "no permission")) from error
            raise

    def remake(self, name: str, most: int, listed: Callable[[], _T], made: Callable[[_T], bytes]) -> int:
        """Write a file that is made of others, again until nobody changed those or it meanwhile; bytes written.

        So the last one that is written is made of all that were there before it, as long as a store lists what was
        written before.

        Raises:
            StoreError: the store cannot be read or written, or does not give back what was written, or the file would
                have more than `most` bytes.
        """
        count = 0
        for _ in range(_TRIES):
            before = listed()
            data = made(before)
            if len(data) > most:
                raise StoreError(StoreReadOnly(self.label, f"a file would have more than {most} bytes"))
            if self.read(name, most, Endless()) != data:
                self.write(name, data)
                count += len(data)
            if listed() == before and self.read(name, most, Endless()) == data:
                return count
        raise StoreError(StoreReadOnly(self.label, "it does not keep what is written, or others keep changing it"))

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
        if isinstance(error, BadNameError):
            return StoreError(StoreBadName(self.label, str(error)[:100]))
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
        """The file system. Making one may ask servers (gcsfs does for credentials). Raises StoreError."""
        with self._lock:
            if self._fs is None:
                make, options = self._imported()
                self._fs = make(**options)
            return self._fs

    def _imported(self) -> tuple[Callable[..., Any], dict[str, Any]]:
        """What makes the file system, and its options."""
        scheme = self.address.scheme
        if scheme == "file":
            return Folder, {"root": self.address.url}
        options: dict[str, Any] = {"skip_instance_cache": True}
        package = "fsspec"
        try:
            fsspec = importlib.import_module(package)
            package = _PACKAGES[scheme]
            importlib.import_module(package)
            if scheme in ("http", "https"):
                timeout = importlib.import_module("aiohttp").ClientTimeout
                options["client_kwargs"] = {"timeout": timeout(sock_connect=self._wait, sock_read=self._wait)}
            elif scheme == "s3":
                options["config_kwargs"] = {"connect_timeout": self._wait, "read_timeout": self._wait}
                options["use_listings_cache"] = False
            return fsspec.get_filesystem_class(scheme), options
        except ImportError as error:
            raise StoreError(StoreNeedsPackage(self.label, package)) from error

    def _path(self, name: str) -> str:
        return name if self.address.scheme == "file" else f"{self.address.url}/{name}"

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


def _chunks(file: Any, most: int, given_up: threading.Event) -> Iterator[bytes]:
    left = most + 1
    while left and not given_up.is_set() and (chunk := file.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


def _written(info: dict[str, Any]) -> float:
    found = info.get("mtime") or info.get("LastModified") or info.get("created") or info.get("last_modified")
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else 0.0
