"""What a compiled graph's own files tell: for which GPUs its kernels are, and which weights it reads.

For graphs that this machine cannot load. NVIDIA's `cuobjdump` reads the kernels; Triton brings it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...common.errors import CompileError
from .packages import GRAPH_FILE, PLAN_FILE, region_file
from .plan import RegionPlan

# By system, how a library begins and how it names the driver that it is to be loaded with.
_LIBRARIES = {"linux": (b"\x7fELF", b"libcuda.so.1\0"), "windows": (b"MZ", b"nvcuda.dll\0")}
_OF_GPUS = 190  # the machine that a file of machine code is for: NVIDIA's, by its number in ELF
_ARCHITECTURE = re.compile(r"\.sm_(\d+)[a-z]?\.cubin$", re.MULTILINE)  # from the code's own header


def told(option: str, kernel: Path) -> str:
    """Return what cuobjdump tells of a kernel's machine code. Raises CompileError."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    try:
        return subprocess.run([tool, option, kernel], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"Triton's cuobjdump does not run ({error}), without which no graph is signed.") from error


def check(folder: Path, capability: tuple[int, int], system: str, weights: Mapping[str, Any]) -> list[str]:
    """Return which weights the graph in a folder reads.

    Args:
        system: `linux` or `windows`.

    Raises:
        CompileError: its kernels are not for that compute capability alone, or cannot be read; or its libraries are
            another system's, or do not ask for the driver.
    """
    plan_file = folder / PLAN_FILE
    if plan_file.is_file():
        plan = RegionPlan.from_json(json.loads(plan_file.read_text(encoding="utf-8")))
        archives = [folder / region_file(number) for number in sorted({step.region_type for step in plan.steps})]
        regions = ((folder / region_file(step.region_type), step.weights) for step in plan.steps)
        names = [name for region, read in regions for name in _of_region(region, read)]
    else:
        archives = [folder / GRAPH_FILE]
        names = _reads(archives[0], weights)
    found = {one for archive in archives for one in architectures(archive)}
    if found != {capability}:
        told_of = ", ".join(f"{major}.{minor}" for major, minor in sorted(found)) or "no GPU"
        wanted = ".".join(map(str, capability))
        raise CompileError(f"The compiler wrote machine code for {told_of} in place of {wanted}; it is not kept.")
    start, driver = _LIBRARIES[system]
    for library in map(_library, archives):
        if not library.startswith(start):
            raise CompileError(f"The compiler wrote a library that is none of {system}'s; nothing is kept of it.")
        if driver not in library:
            raise CompileError("The compiler wrote a library that does not ask for NVIDIA's driver; it is not kept.")
    return [*dict.fromkeys(names)]


def architectures(archive: Path) -> set[tuple[int, int]]:
    """Read for which compute capabilities an archive's kernels are. Raises CompileError."""
    found: set[tuple[int, int]] = set()
    with zipfile.ZipFile(archive) as files, tempfile.TemporaryDirectory() as folder:
        kernels = [files.read(name) for name in files.namelist() if name.endswith(".cubin")]
        for number, code in enumerate([*kernels, *_embedded(_library(archive))]):
            kernel = Path(folder) / f"{number}.cubin"
            kernel.write_bytes(code)
            found |= {divmod(int(one), 10) for one in _ARCHITECTURE.findall(told("-lelf", kernel))}
    return found


def _embedded(library: bytes) -> Iterator[bytes]:
    """The kernels that lie in a library, each with what follows up to the next one."""
    starts = [found.start() for found in re.finditer(b"\x7fELF", library)]
    for start, end in zip(starts, [*starts[1:], len(library)], strict=True):
        if int.from_bytes(library[start + 18 : start + 20], "little") == _OF_GPUS:
            yield library[start:end]


def _library(archive: Path) -> bytes:
    with zipfile.ZipFile(archive) as files:
        return b"".join(files.read(one) for one in files.namelist() if one.endswith(".so"))


def _reads(archive: Path, names: Iterable[str]) -> list[str]:
    """Which of these names of weights the library in an archive has, as texts of their own.

    One that is not found although it is there has the graph refused; the end of another text must not count for one.
    """
    code = _library(archive)
    return [name for name in names if b"\0" + name.encode() + b"\0" in code]


def _of_region(archive: Path, weights: Iterable[str]) -> Iterator[str]:
    """Those of a step's weights that its region reads, which calls them w0, w1 and so on."""
    by_short = {f"w{number}": name for number, name in enumerate(weights)}
    yield from (by_short[short] for short in _reads(archive, by_short))
