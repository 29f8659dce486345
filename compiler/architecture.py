"""What compiled code depends on besides shapes: the architecture, as a digest.

Two checkpoints with the same digest are served by one graph; two that differ in anything that could change
the code (a head count, which no weight shows, or one edited line of the host's source) must differ here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

_SCALARS = (bool, int, float, str, type(None), torch.dtype)


def _describe(value: Any) -> str | None:
    """A stable text for a plain value, or None for what is no configuration (modules, tensors, caches)."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, tuple | list | torch.Size):
        parts = [_describe(v) for v in value]
        return None if None in parts else f"[{','.join(p for p in parts if p is not None)}]"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    return None


_file_digests: dict[tuple[str, int, int], str] = {}


def _file_digest(path: str) -> str:
    stat = Path(path).stat()
    memo = (path, stat.st_mtime_ns, stat.st_size)
    if memo not in _file_digests:
        _file_digests[memo] = blake3(Path(path).read_bytes()).hexdigest()
    return _file_digests[memo]


def _source(module_name: str) -> str | None:
    path = getattr(sys.modules.get(module_name), "__file__", None)
    return path if path and Path(path).is_file() else None


def digest(
    module: torch.nn.Module,
    *,
    volatile: Callable[[str], bool] = lambda name: False,
    sources: Iterable[str] = (),
) -> str:
    """Hex digest of a module's structure, parameter metadata and the source code of its classes.

    `volatile` names the instance attributes that say how a model is placed in memory right now, not what it
    computes. `sources` adds modules (dotted names) whose functions the module's forward calls. torch's own
    source is left out: its version is part of the target.
    """
    h = blake3()
    modules = set(sources)
    for name, child in module.named_modules():
        cls = type(child)
        modules.update(base.__module__ for base in cls.__mro__)
        h.update(f"\nmodule {name} {cls.__module__}.{cls.__qualname__}".encode())
        for attribute, value in sorted(vars(child).items()):
            if attribute.startswith("_") or attribute == "training" or volatile(attribute):
                continue
            text = _describe(value)
            if text is not None:
                h.update(f"\n {attribute}={text}".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        h.update(f"\ntensor {name} {list(tensor.shape)} {list(tensor.stride())} {tensor.dtype}".encode())
    for name in sorted(modules):
        if name == "builtins" or name == "torch" or name.startswith("torch."):
            continue
        path = _source(name)
        h.update(f"\nsource {name} {_file_digest(path) if path else 'none'}".encode())
    return h.hexdigest()
