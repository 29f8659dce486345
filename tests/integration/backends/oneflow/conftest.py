"""One module with everything that the backend lowers, captured and built once per run; skipped where OneFlow is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from onegraph.backends.oneflow import OneFlowBackend, OneFlowRunner
from onegraph.compiler import export
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec

CPU = torch.device("cpu")
HINT = {"batch": 2, "height": 8, "width": 8, "context": 5}
needs_oneflow = pytest.mark.skipif(not OneFlowBackend().can_run(CPU).ok, reason=OneFlowBackend().can_run(CPU).text)


class Block(torch.nn.Module):
    """x [B, 4, H, W], t [B], context [B, T, 8] -> [B, 4, 2H, 2W]: what diffusion models are made of, once each."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(4, 8)
        self.embed = torch.nn.Linear(1, 8)
        self.tokens = torch.nn.LayerNorm(8)
        self.q, self.k, self.v = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.ff = torch.nn.Linear(8, 32)
        self.back = torch.nn.Linear(16, 8)
        self.down = torch.nn.Conv2d(16, 8, 3, stride=2)
        self.out = torch.nn.Conv2d(8, 4, 1)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        b, _, height, width = x.shape
        h = self.inner(x) + self.embed(torch.cos(t[:, None] * 0.01))[:, :, None, None]
        h = torch.nn.functional.silu(self.norm(h))
        tokens = self.tokens(h.permute(0, 2, 3, 1).reshape(b, -1, 8))
        q, k, v = (
            m(s).view(b, -1, 2, 4).transpose(1, 2) for m, s in ((self.q, tokens), (self.k, context), (self.v, context))
        )
        tokens = tokens + torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, 8)
        value, gate = self.ff(tokens).chunk(2, dim=-1)
        tokens = self.back(value * torch.nn.functional.gelu(gate))
        h = torch.cat([h, tokens.reshape(b, height, width, 8).permute(0, 3, 1, 2)], dim=1)
        h = self.down(torch.nn.functional.pad(h, (0, 1, 0, 1)))
        return self.out(torch.nn.functional.interpolate(h, size=(2 * height, 2 * width), mode="nearest"))


class Call(torch.nn.Module):
    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.module = block

    def forward(self, x: torch.Tensor, t: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x, t, context)
        return result


def shapes() -> ShapeRange:
    return ShapeRange(
        (Dim("batch", 1, 4), Dim("height", 4, 32), Dim("width", 4, 32), Dim("context", 1, 64)),
        (
            TensorSpec("x", ("batch", 4, "height", "width"), "float32"),
            TensorSpec("t", ("batch",), "float32"),
            TensorSpec("context", ("batch", "context", 8), "float32"),
        ),
    )


def inputs(batch: int = 2, height: int = 8, width: int = 8, context: int = 5) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 4, height, width), 999 * torch.rand(batch), torch.randn(batch, context, 8)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def exported(module: torch.nn.Module) -> torch.export.ExportedProgram:
    with OneFlowBackend().capture_settings():
        return export.capture(module, shapes(), HINT, CPU)


@dataclass
class Built:
    """A folder that `compile` wrote for `inputs()`."""

    folder: Path
    backend: OneFlowBackend

    def load(self) -> OneFlowRunner:
        return self.backend.load(self.folder, CPU)


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("oneflow")
    backend = OneFlowBackend()
    with torch.no_grad():
        assert set(backend.compile(exported(Call(Block())), inputs(), folder)) == {p.name for p in folder.iterdir()}
    return Built(folder, backend)


@pytest.fixture
def built(built_once: Built, tmp_path: Path) -> Built:
    """A copy of the graph's folder, for tests that change it."""
    return Built(Path(shutil.copytree(built_once.folder, tmp_path / "graph")), built_once.backend)


@pytest.fixture
def runner(built_once: Built) -> Iterator[OneFlowRunner]:
    loaded = built_once.load()
    yield loaded
    loaded.close()
