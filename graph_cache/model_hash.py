"""Which model is this? A fast hash of a checkpoint file, to name the folder of its graphs.

The hash names a folder and nothing else: graphs hold no weights, so a mistaken identity costs a compile and
never an image. Hence 64 samples instead of all bytes: 2 ms instead of seconds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

SAMPLES = 64
SAMPLE_BYTES = 64 * 1024
_LARGEST_HEADER = 100 * 1024 * 1024  # safetensors' own limit


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
    """Return the length of the safetensors header including its length field; 0 for other formats."""
    if len(data) < 8:
        return 0
    length = int.from_bytes(data[:8], "little")
    return 8 + length if 0 < length <= min(_LARGEST_HEADER, size - 8) else 0


def hash_file(path: Path) -> str:
    """Hash a checkpoint's header, its size and 64 evenly spaced samples of 64 KiB to 12 hex digits.

    A file that is still the same (real path, size, modification time, inode) is read once. Raises OSError.
    """
    real = path.resolve(strict=True)
    stat = real.stat()
    return _hash(real, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=4096)
def _hash(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    h = blake3(size.to_bytes(8, "little"))
    with path.open("rb") as f:
        header = _header(f.read(8), size)
        f.seek(0)
        h.update(f.read(header))
        for i in range(SAMPLES):
            f.seek(max(0, (size - SAMPLE_BYTES) * i // (SAMPLES - 1)))
            h.update(f.read(SAMPLE_BYTES))
    digest: str = h.hexdigest(length=6)
    return digest
