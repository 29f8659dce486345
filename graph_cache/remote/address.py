"""Addresses of remote stores, and what the environment says of them."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ...common.reasons import StoreBadAddress

STORES = "ONEGRAPH_STORES"  # addresses, separated by commas or white space, in the order in which they are asked
WAIT = "ONEGRAPH_STORES_WAIT"  # seconds
DEFAULT_WAIT = 5.0
SCHEMES = ("https", "http", "s3", "gs", "hf", "file")  # fsspec has more, which nobody tried


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


def parse(text: str) -> Address | StoreBadAddress:
    """Read an address, such as `s3://bucket/graphs`. One of a folder is absolute: `file:///mnt/graphs`."""
    text = text.strip().rstrip("/")
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return StoreBadAddress(_shown(text))
    if parts.scheme not in SCHEMES or "::" in text or parts.query or parts.fragment:
        return StoreBadAddress(_shown(text))
    if parts.scheme == "file":
        path = unquote(parts.path)
        if not path.startswith("/") or host not in ("", "localhost"):
            return StoreBadAddress(_shown(text))
        return Address("file", path, f"file:{path.rpartition('/')[2]}")
    if not host:
        return StoreBadAddress(_shown(text))
    return Address(parts.scheme, text, f"{parts.scheme}://{host}{port}{parts.path}")


def _shown(text: str) -> str:
    return text.rpartition("@")[2][:100] or "an empty text"


def from_environment() -> list[Address | StoreBadAddress]:
    """The stores that `ONEGRAPH_STORES` names, in their order, each once."""
    texts = [text for text in re.split(r"[\s,]+", os.environ.get(STORES, "")) if text]
    return [parse(text) for text in dict.fromkeys(texts)]


def wait_from_environment() -> float:
    """Seconds that a look-up waits for a store at most. What is no number above 0 counts as if it were not there."""
    try:
        seconds = float(os.environ.get(WAIT, DEFAULT_WAIT))
    except ValueError:
        return DEFAULT_WAIT
    return seconds if seconds > 0 and math.isfinite(seconds) else DEFAULT_WAIT
