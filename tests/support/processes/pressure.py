"""GPU memory taken by another process, as another program on the machine would: `with pressure.leaving(2.0): ...`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_SMALLEST = 2**26  # smaller remainders are left alone: the driver rounds


@contextlib.contextmanager
def leaving(gib: float) -> Iterator[float]:
    """While this lasts, no more than about so many GiB are free on the GPU; yields what is."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(gib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline().split()
        assert line and line[0] == "free", "the other process could not take the memory"
        yield float(line[1])
    finally:
        process.stdin.close()
        process.wait(60)


def _hold(gib: float) -> None:
    import torch

    held = []
    free = torch.cuda.mem_get_info()[0]
    while free - gib * 2**30 > _SMALLEST:
        held.append(torch.empty(int(min(free - gib * 2**30, 2**33)), dtype=torch.uint8, device="cuda"))
        free = torch.cuda.mem_get_info()[0]
    print("free", free / 2**30, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _hold(float(sys.argv[1]))
