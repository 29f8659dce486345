"""What a bake without weights reads of a model's file, fetched from where the file is: its header and small tensors.

It is put into a sparse file of the whole file's size, which takes some hundred KB on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib import request

HUB = "https://huggingface.co"
_ADDRESS = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)/(?P<file>[\w./-]+)")
_LARGEST_HEADER = 100 << 20  # bytes, safetensors' own limit
_LARGEST_TENSOR = 4096  # bytes of one that describes others, such as `comfy_quant` and scales
_SECONDS, _AT_ONCE = 60.0, 8


class HeaderNotFetchedError(Exception):
    """A header cannot be had; the message says why, and what to do."""


def url_of(model: str) -> str:
    """Return the address of a model's file: `hf://OWNER/NAME/FILE`, or one of http; empty: it is a path.

    >>> url_of("hf://Comfy-Org/flux1-dev/flux1-dev.safetensors")
    'https://huggingface.co/Comfy-Org/flux1-dev/resolve/main/flux1-dev.safetensors'
    >>> url_of("models/flux1-dev.safetensors")
    ''
    """
    if match := _ADDRESS.fullmatch(model):
        return f"{os.environ.get('HF_ENDPOINT') or HUB}/{match['repository']}/resolve/main/{match['file']}"
    return model if re.match("https?://", model) else ""


def fetch(url: str, folder: Path, sha256: str = "", dtype: str = "") -> tuple[Path, str]:
    """Fetch what a bake reads of a safetensors file; what was fetched before under the same pin is not fetched again.

    Args:
        sha256: what the digest of all that is read must be; empty: any.
        dtype: in which most of the file's bytes must be, as safetensors names it, such as `BF16`; empty: any.

    Returns:
        A sparse file below `folder`, and the digest.

    Raises:
        HeaderNotFetchedError: it cannot be fetched, or it is another one than is asked for.
        OSError: the file cannot be written.
    """
    name = url.rpartition("/")[2]
    path = folder / hashlib.sha256(url.encode()).hexdigest()[:16] / (sha256 or "unpinned") / name
    if sha256 and path.is_file():
        return path, sha256
    try:
        length = int.from_bytes(_range(url, 0, 8), "little")
        if not 0 < length <= _LARGEST_HEADER:
            raise ValueError("it is no safetensors file")
        parts = {0: length.to_bytes(8, "little") + _range(url, 8, length)}
        small, held, size = list[tuple[int, int]](), Counter[str](), 8 + length
        for tensor, row in json.loads(parts[0][8:]).items():
            if tensor != "__metadata__":
                begin, end = (8 + length + int(offset) for offset in row["data_offsets"])
                held[row["dtype"]] += end - begin
                size = max(size, end)
                if 0 < end - begin <= _LARGEST_TENSOR and (row["dtype"] == "U8" or "scale" in tensor):
                    small.append((begin, end - begin))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            parts |= zip([begin for begin, _ in small], pool.map(lambda place: _range(url, *place), small), strict=True)
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as why:
        raise HeaderNotFetchedError(
            f"The header of {name} cannot be fetched from {url} ({why}). Check the network and its proxy, or put the "
            "file beside the plan."
        ) from why
    digest = hashlib.sha256(b"".join(parts[begin] for begin in sorted(parts))).hexdigest()
    if sha256 not in ("", digest):
        raise HeaderNotFetchedError(f"{name} is another file than the plan pins: its digest is {digest}. Look why.")
    mostly = max(held, key=lambda one: held[one], default="nothing")
    if dtype not in ("", mostly):
        raise HeaderNotFetchedError(f"{name} holds {mostly} and not {dtype}. Name the other file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    with partial.open("wb") as file:
        file.truncate(size)
        for begin, part in parts.items():
            file.seek(begin)
            file.write(part)
    partial.replace(path)
    return path, digest


def _range(url: str, begin: int, count: int) -> bytes:
    """Read so many bytes of a file. Raises OSError, HTTPException, ValueError."""
    asked = request.Request(url, headers={"Range": f"bytes={begin}-{begin + count - 1}"})
    with request.urlopen(asked, timeout=_SECONDS) as answer:  # by the proxies that the environment names
        if answer.status != 206:
            raise ValueError("the server gives no parts of files")
        data: bytes = answer.read(count + 1)
    if len(data) != count:
        raise ValueError(f"the server gave {len(data)} bytes in place of {count}")
    return data
