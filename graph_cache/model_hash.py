"""Which model is this? A fast hash of a checkpoint file, to name the place of its graphs.

The hash names a folder and nothing else: graphs hold no weights, so a mistaken identity costs a compile and
never an image. Hence 64 samples instead of all bytes: 2 ms instead of seconds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

SAMPLES = 64
SAMPLE_BYTES = 64 * 1024
_LARGEST_HEADER = 100 * 1024 * 1024  # safetensors' own limit

_memo: dict[tuple[str, int, int, int], str] = {}
_memo_lock = threading.Lock()


@dataclass(frozen=True)
class ModelSource:
    """Where a model came from.

    Attributes:
        path: the checkpoint file, or None when it is not known.
        digest: 12 hex digits, of the file or of the weights' fingerprint.
    """

    path: Path | None
    digest: str


def _header(data: bytes, size: int) -> int:
    """Length of the safetensors header including its length field; 0 for other formats."""
    if len(data) < 8:
        return 0
    length = int.from_bytes(data[:8], "little")
    return 8 + length if 0 < length <= min(_LARGEST_HEADER, size - 8) else 0


def hash_file(path: Path) -> str:
    """12 hex digits over a safetensors file's header, its size and 64 evenly spaced samples of 64 KiB.

    Memoised by real path, size, modification time and inode. Raises OSError.
    """
    real = path.resolve(strict=True)
    stat = real.stat()
    memo = (str(real), stat.st_size, stat.st_mtime_ns, stat.st_ino)
    with _memo_lock:
        if memo in _memo:
            return _memo[memo]
    h = blake3(stat.st_size.to_bytes(8, "little"))
    with real.open("rb") as f:
        header = _header(f.read(8), stat.st_size)
        f.seek(0)
        h.update(f.read(header))
        for i in range(SAMPLES):
            f.seek(max(0, (stat.st_size - SAMPLE_BYTES) * i // (SAMPLES - 1)))
            h.update(f.read(SAMPLE_BYTES))
    digest = h.hexdigest(length=6)
    with _memo_lock:
        _memo[memo] = digest
    return digest
