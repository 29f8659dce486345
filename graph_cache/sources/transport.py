"""Where remote stores are, and reading and writing their files through fsspec, which comes with torch.

Whatever the protocol, a read takes one request, at most so many bytes, and at most so many seconds: it runs in a thread
of its own, which nobody waits for once its time is over.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as WaitOver
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from ...common import reasons
from ...common.errors import OneGraphError, in_brief
from ...common.log import logger
from ...common.reasons import Reason
from .store_folder import BadNameError, Folder

log = logger("graph_cache")

STORES = "ONEGRAPH_STORES"  # addresses, separated by commas or white space, in the order in which they are asked
WAIT = "ONEGRAPH_STORES_WAIT"  # seconds
DEFAULT_WAIT = 5.0
SCHEMES = ("https", "http", "s3", "gs", "hf", "file")  # fsspec has more, which nobody tried

_COMMAND_SECONDS = 60.0  # of one file, for a command that a user looks at and may stop
_LISTING_SECONDS = 600.0
BYTES_PER_SECOND = 1_000_000  # what a store must give at least, beyond the time that any answer may take
_CHUNK = 1 << 20
_TRIES = 100  # of a file that is made of others, each because somebody else wrote meanwhile
_STREAMED = ("http", "https", "hf")  # of which fsspec reads a file in one request only where blocks have no size
_FORBIDDEN, _MISSING = (401, 403), (404, 410)
_PACKAGES = {"s3": "s3fs", "hf": "huggingface_hub", "http": "aiohttp", "https": "aiohttp", "gs": "gcsfs"}
_T = TypeVar("_T")


@dataclass(frozen=True)
class Address:
    """Where a store is.

    Attributes:
        scheme: one of `SCHEMES`, as fsspec names them.
        url: without a slash at its end.
        label: for people: no password, no query, and of a folder its name alone.
    """

    scheme: str
    url: str
    label: str


def parse(text: str) -> Address | reasons.StoreBadAddress:
    """Read an address. That of a folder is absolute.

    >>> parse("s3://bucket/graphs/").url, parse("file:///mnt/graphs").label
    ('s3://bucket/graphs', 'file:graphs')
    >>> parse("https://user:password@example.org/graphs").label
    'https://example.org/graphs'
    >>> parse("graphs").code
    'store_bad_address'
    """
    text = text.strip().rstrip("/")
    bad = reasons.StoreBadAddress(text.rpartition("@")[2][:100] or "an empty text")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return bad
    if parts.scheme not in SCHEMES or "::" in text or parts.query or parts.fragment:
        return bad
    if parts.scheme == "file":
        path = unquote(parts.path)
        if os.name == "nt" and path[2:3] == ":":  # file:///C:/graphs
            path = path[1:]
        is_local = PurePath(path).is_absolute() and host in ("", "localhost")
        return Address("file", path, f"file:{path.rpartition('/')[2]}") if is_local else bad
    return Address(parts.scheme, text, f"{parts.scheme}://{host}{port}{parts.path}") if host else bad


def from_environment() -> list[Address | reasons.StoreBadAddress]:
    """Return the stores that `ONEGRAPH_STORES` names, in their order, each once."""
    texts = [text for text in re.split(r"[\s,]+", os.environ.get(STORES, "")) if text]
    return [parse(text) for text in dict.fromkeys(texts)]


def wait_from_environment() -> float:
    """Read how many seconds a look-up waits for a store. A text that is no positive number counts as the default."""
    try:
        seconds = float(os.environ.get(WAIT, DEFAULT_WAIT))
    except ValueError:
        return DEFAULT_WAIT
    return seconds if seconds > 0 and math.isfinite(seconds) else DEFAULT_WAIT


class StoreError(OneGraphError):
    """A store gives nothing that may be used."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


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


class Remote:
    """One store. Names of files are relative, with slashes, and made by `records` alone.

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

    @property
    def can_list(self) -> bool:
        """Whether the protocol has a way to list files."""
        return self.address.scheme not in ("http", "https")

    def connect(self) -> None:
        """Import what the protocol takes, which is no time of the store's and asks nobody. Raises StoreError."""
        self._imported()

    def read(self, name: str, most: int, patience: Patience | None = None) -> bytes | None:
        """Read a file: as many bytes as it has, or one more than `most`; None where there is none.

        Args:
            patience: None: that of a command.

        Raises:
            StoreError: the store does not give it, or not in time.
        """
        seconds = most / BYTES_PER_SECOND
        return self._within(lambda fs, given_up: self._read(fs, name, most, given_up), patience, seconds)

    def size(self, name: str) -> int | None:
        """Tell how many bytes a file has; None where there is none. Raises StoreError."""
        return self._within(lambda fs, given_up: int(fs.info(self._path(name))["size"]))

    def list(self, folder: str, patience: Patience | None = None) -> dict[str, tuple[int, float]]:
        """List all files below a folder by their names: bytes, and when each was written (0: unknown).

        Names are as the store tells them; `records.named` knows which are such as a store has.

        Args:
            patience: None: that of a command.

        Raises:
            StoreError: it cannot be listed.
        """
        if not self.can_list:
            raise StoreError(reasons.StoreCannotList(self.label))

        def ask(fs: Any, given_up: threading.Event) -> dict[str, tuple[int, float]]:
            fs.invalidate_cache()
            begin = len(fs._strip_protocol(self.address.url)) + 1 if self.address.scheme != "file" else 0
            files = fs.find(self._path(folder), detail=True).items()
            return {path[begin:]: (int(one.get("size") or 0), _written(one)) for path, one in files}

        return self._within(ask, patience, _LISTING_SECONDS) or {}

    def write(self, name: str, data: bytes, **mode: str) -> None:
        """Write a file in one step, over one that is there; with mode="create" where none is. Raises StoreError."""
        path, seconds = self._path(name), len(data) / BYTES_PER_SECOND
        try:
            written = self._within(lambda fs, given_up: fs.pipe_file(path, data, **mode) or True, None, seconds)
        except StoreError as error:
            if isinstance(error.reason, reasons.StoreForbidden):
                raise StoreError(reasons.StoreReadOnly(self.label, "no permission")) from error
            raise
        if written is None:
            raise StoreError(reasons.StoreReadOnly(self.label, "its folder is missing"))

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
                raise StoreError(reasons.StoreReadOnly(self.label, f"a file would have more than {most} bytes"))
            if self.read(name, most) != data:
                self.write(name, data)
                count += len(data)
            if listed() == before and self.read(name, most) == data:
                return count
        raise StoreError(
            reasons.StoreReadOnly(self.label, "it does not keep what is written, or others keep changing it")
        )

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises StoreError."""
        self._within(lambda fs, given_up: fs.rm_file(self._path(name)))

    # ---------------------------------------------------------------------------------------------------------

    def _within(
        self, ask: Callable[[Any, threading.Event], _T], patience: Patience | None = None, seconds: float = 0.0
    ) -> _T | None:
        """Ask the file system, for as long as a look-up waits; or a command, beyond these seconds. None: no such file.

        Raises:
            StoreError: the store does not give it, or not in time.
        """
        patience = patience or Patience(_COMMAND_SECONDS + seconds)
        done, given_up = Future[_T](), threading.Event()

        def call() -> None:
            try:
                done.set_result(ask(self._open_fs(), given_up))
            except BaseException as error:  # whoever waits is told
                done.set_exception(error)

        # A daemon: nobody waits for a store that is silent, not even a process that ends.
        threading.Thread(target=call, name="onegraph-store", daemon=True).start()
        try:
            error = done.exception(patience.left)
        except WaitOver:
            raise StoreError(reasons.StoreTooSlow(self.label, round(patience.seconds, 3))) from None
        finally:
            given_up.set()
        if error is None:
            return done.result()
        if isinstance(error, StoreError):
            raise error
        reason = self._reason(error)
        if reason is None:
            return None
        raise StoreError(reason) from error

    def _reason(self, error: BaseException) -> Reason | None:
        """Judge what fsspec raised, whose classes depend on the protocol. None: there is no such file or folder."""
        if isinstance(error, BadNameError):
            return reasons.StoreBadName(self.label, str(error)[:100])
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) or status in _MISSING:
            return None
        if isinstance(error, PermissionError) or status in _FORBIDDEN:
            return reasons.StoreForbidden(self.label)
        detail = f"status {status}" if isinstance(status, int) else type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            detail = error.strerror
        log.debug("%s: %s", self.label, in_brief(error))  # may hold names and addresses of the machine
        return reasons.StoreUnreachable(self.label, detail)

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
            raise StoreError(reasons.StoreNeedsPackage(self.label, package)) from error

    def _path(self, name: str) -> str:
        return name if self.address.scheme == "file" else f"{self.address.url}/{name}"

    def _read(self, fs: Any, name: str, most: int, given_up: threading.Event) -> bytes:
        path, scheme = self._path(name), self.address.scheme
        if scheme not in (*_STREAMED, "file"):
            data: bytes = fs.cat_file(path, start=0, end=most + 1)
            return data
        options: dict[str, Any] = {"block_size": 0} if scheme == "hf" else {}
        if scheme in ("http", "https"):
            options = {"block_size": 0, "size": 1, "allow_redirects": False}
        with fs.open(path, "rb", **options) as file:
            status = getattr(getattr(file, "r", None), "status", 200)
            if 300 <= status < 400:
                raise StoreError(reasons.StoreRedirects(self.label))
            return b"".join(_chunks(file, most, given_up))


def _chunks(file: Any, most: int, given_up: threading.Event) -> Iterator[bytes]:
    left = most + 1
    while left and not given_up.is_set() and (chunk := file.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


def _written(info: dict[str, Any]) -> float:
    written = info.get("mtime") or info.get("LastModified") or info.get("created") or info.get("last_modified")
    if isinstance(written, datetime):
        return written.timestamp()
    return float(written) if isinstance(written, int | float) else 0.0
