"""The smallest module that shows each trap of compiling, and the worker's client for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from onegraph.backends import get, rebuilder
from onegraph.common.tensor_meta import TensorMeta
from onegraph.compiler.code import fingerprint
from onegraph.compiler.process.job import ClientModule
from onegraph.graph_cache.key import GraphKey
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.request import Request
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec

PREFIX = "toy."
CPU = torch.device("cpu")


class Toy(torch.nn.Module):
    """x [B, 4, H, W], context [B, T, 8] -> [B, 4, H, W]. Its last bias has 4 elements, its Linear is square."""

    def __init__(self, seed: int = 0, heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.heads = heads
        self.inner = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.mix = torch.nn.Linear(8, 8)
        self.out = torch.nn.Conv2d(8, 4, 1)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.silu(self.inner(x))
        return self.out(h + self.mix(context).mean(1)[:, :, None, None] * self.heads)


def weight_table(module: torch.nn.Module, prefix: str = "") -> tuple[TensorMeta, ...]:
    """Every parameter and buffer of a module as compiled code will rely on it, names prefixed."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return tuple(TensorMeta.of(prefix + name, tensor) for name, tensor in named)


class Fixed(Toy):
    """Decides something from its height, so that no graph serves a range of heights."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return super().forward(x, context) * (2 if x.shape[2] > 16 else 1)


class Reducing(Toy):
    """Sums over many elements, which compilers share among threads, each with a place of its own for its part."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.group_norm(self.inner(x), 2)
        return super().forward(x, context) * h.square().mean() + h.amax()


class Block(torch.nn.Module):
    """x [N, P, C], context [N, T, 8] -> [N, P, C]: weights, sizes read off x, a chunk, `length` cheap operations."""

    def __init__(self, channels: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.mix = torch.nn.Linear(channels, 2 * channels)
        self.context = torch.nn.Linear(8, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        batch, pixels, channels = x.shape
        a, b = self.mix(x.reshape(batch * pixels, channels)).reshape(batch, pixels, -1).chunk(2, -1)
        h = a * torch.sigmoid(b)
        for _ in range(self.length):
            h = h * 0.99 + 0.01
        return x + h + self.context(context).mean(1, keepdim=True)


class Deep(torch.nn.Module):
    """As the toy, through blocks of two kinds with a skip connection: what a UNet is to the cutting of graphs."""

    def __init__(self, seed: int = 0, length: int = 20, wide: int = 4, narrow: int = 2) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.down = torch.nn.Conv2d(8, 16, 1)
        self.wide = torch.nn.ModuleList(Block(16, length) for _ in range(wide))
        self.up = torch.nn.Conv2d(16, 8, 1)
        self.narrow = torch.nn.ModuleList(Block(8, length) for _ in range(narrow))
        self.out = torch.nn.Conv2d(8, 4, 1)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        skip = h = torch.nn.functional.silu(self.inner(x))
        h = self._through(self.wide, self.down(h), context)
        h = self._through(self.narrow, self.up(h) + skip, context)
        return self.out(h)

    def _through(self, blocks: torch.nn.ModuleList, h: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = h.shape
        h = h.flatten(2).transpose(1, 2)
        for block in blocks:
            h = block(h, context)
        return h.transpose(1, 2).reshape(batch, channels, height, width)


class Several(Deep):
    """As `Deep`, and returns what it makes on the way, too: values that later blocks read, one of them twice."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        skip = torch.nn.functional.silu(self.inner(x))
        small = self._through(self.wide, self.down(skip), context)
        h = self._through(self.narrow, self.up(small) + skip, context)
        return self.out(h), [skip, small, skip]


def several(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a graph of `Several` returns."""
    out, more = module(*inputs)
    return out, *more


class Call(torch.nn.Module):
    def __init__(self, toy: torch.nn.Module) -> None:
        super().__init__()
        self.toy = toy

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> Any:
        return self.toy(x, context)


def prepare(state: Mapping[str, Any]) -> None:
    """The toy needs nothing; tests ask for trouble through `state`."""
    import os
    import signal
    import time

    if state.get("die"):  # by that signal, or as the system kills what takes too much memory
        os.kill(os.getpid(), signal.SIGKILL if state["die"] is True else state["die"])
    if state.get("oom"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nSee the documentation.")
    time.sleep(state.get("sleep", 0))


def rules() -> fingerprint.Rules:
    return fingerprint.Rules()


def wrap(component: str, module: torch.nn.Module, inputs: Sequence[str] = ()) -> torch.nn.Module:
    return Call(module)


def shapes(multiple: int = 1, high: int = 32) -> ShapeRange:
    return ShapeRange(
        (Dim("batch", 1, 4), Dim("height", 4, high, multiple), Dim("width", 4, high, multiple), Dim("context", 1, 64)),
        (
            TensorSpec("x", ("batch", 4, "height", "width"), "float32"),
            TensorSpec("context", ("batch", "context", 8), "float32"),
        ),
    )


def exact(batch: int = 2, height: int = 8, width: int = 8, context: int = 5) -> ShapeRange:
    sizes = {"batch": batch, "height": height, "width": width, "context": context}
    return ShapeRange(tuple(Dim(name, size, size) for name, size in sizes.items()), shapes().inputs)


def inputs(batch: int = 2, height: int = 8, width: int = 8, context: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 4, height, width), torch.randn(batch, context, 8)


def sizes(x: torch.Tensor, context: torch.Tensor) -> dict[str, int]:
    return {"batch": x.shape[0], "height": x.shape[2], "width": x.shape[3], "context": context.shape[1]}


def request(
    module: torch.nn.Module,
    source: ModelSource,
    *,
    spec: ShapeRange | None = None,
    state: Mapping[str, Any] | None = None,
    neighbours: tuple[Path, ...] = (),
    engine: str = "inductor",
) -> Request:
    """`engine` is the backend's name. A spec of exact sizes gives the hint."""
    spec = spec or shapes()
    backend = get(engine)
    key = GraphKey("toy", fingerprint.digest(module), spec.to_json(), "float32", engine, backend.target(CPU))
    hint = {"batch": 2, "height": 8, "width": 8, "context": 5}
    hint |= {d.name: d.low for d in spec.dims if d.exact}
    return Request(
        key, source, spec, "any size", module, PREFIX, backend, CPU, hint,
        ClientModule("support.models.toy", state or {}),
        neighbours, shapes() if rebuilder(backend) is not None else None,
    )  # fmt: skip
