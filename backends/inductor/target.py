"""What the machine code of a graph depends on."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

_ISA_PREFIXES = (
    "sse", "ssse", "avx", "amx", "fma", "bmi", "f16c", "vaes", "vpclmul", "gfni", "sha_ni", "adx", "popcnt",
)  # fmt: skip
_ISA_NAMES = ("abm", "aes", "pclmulqdq", "movbe", "clwb", "clflushopt", "rdseed", "rdpid", "xsave", "fsgsbase")


@functools.cache
def _cpu_features() -> str:
    """The CPU's instruction sets that the compiler may use (it builds for the native CPU)."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags = [f for f in value.split() if f.startswith(_ISA_PREFIXES) or f in _ISA_NAMES]
                return " ".join(sorted(flags) if key.strip() == "flags" else sorted(value.split()))
    return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"


def cpu_digest() -> str:
    """Return 12 hex digits that CPUs with the same instruction sets share."""
    from blake3 import blake3

    return blake3(_cpu_features().encode()).hexdigest(length=6)


_pretended: dict[str, str] = {}


def pretend(system: str, machine: str) -> None:
    """Have this process' graphs be for another system and its processors, as `platform` names them."""
    _pretended.update(platform=system, machine=machine)


def target(device: torch.device) -> dict[str, str]:
    """Return everything that a graph for the device depends on, by name."""
    facts = {
        "torch": torch.__version__,
        "platform": platform.system().lower(),
        "machine": platform.machine(),
        "device": device.type,
        **_pretended,
    }
    if device.type == "cuda":
        # Not the CPU: what runs there is built for the least of its kind, see `settings.compiler_flags`.
        major, minor = torch.cuda.get_device_capability(device)
        return facts | {"cuda": str(torch.version.cuda), "capability": f"{major}.{minor}"}
    return facts | {"cpu": cpu_digest()}
