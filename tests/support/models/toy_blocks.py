"""A small diffusion transformer whose blocks do what those of ComfyUI's families do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from onegraph.common.reasons import Reason
from onegraph.compiler.blocks.capture import Settings
from onegraph.compiler.blocks.other_sizes import FORWARD
from onegraph.compiler.blocks.repeated import entries_of
from onegraph.compiler.code.fingerprint import Rules
from onegraph.compiler.process import job
from onegraph.compiler.process.progress import Progress
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.calls.routing import MethodSlot, own_slot
from onegraph.runtime.request import Request, RequestContext, WhenMissing
from onegraph.signature.call_rules import Attention


@dataclass
class Modulation:
    shift: torch.Tensor
    scale: torch.Tensor


class Double(torch.nn.Module):
    """Two streams that attend together. Changes both in place and returns them, as Flux's does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False)

    def forward(
        self,
        img: Any,
        txt: Any,
        vec: Any,
        pe: Any,
        attn_mask: Any = None,
        transformer_options: Any = {},  # noqa: B006
    ) -> Any:
        if "attn1_patch" in transformer_options.get("patches", {}):
            raise NotImplementedError
        attention = transformer_options.get(
            "optimized_attention_override", torch.nn.functional.scaled_dot_product_attention
        )
        both = torch.cat((txt, img), dim=1)
        both = self.norm(both) * (1 + vec.scale[:, None]) + vec.shift[:, None]
        batch, tokens, width = both.shape
        q, k, v = self.qkv(both).reshape(batch, tokens, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        q = q + pe[:, None]
        found = self.out(attention(q, k, v).transpose(1, 2).flatten(2))
        txt += found[:, : txt.shape[1]]
        img += found[:, txt.shape[1] :]
        return img, txt


writing = False  # whether single blocks write into what they are given, which no graph does


class Single(torch.nn.Module):
    """One stream; a row of its modulation by a whole number, as Qwen-Image's `timestep_zero_index`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.Linear(2 * width, width)

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        heads = kwargs["transformer_options"].get("heads", 2)
        x = x + heads * self.second(torch.nn.functional.gelu(self.first(x) * (1 + vec.scale[:, None].repeat(1, 1, 2))))
        if start is not None:
            tokens = torch.arange(x.shape[1], device=x.device)
            x = torch.where((tokens >= start)[None, :, None], x + vec.shift[:, None], x)
        if writing:
            vec.scale = vec.scale * 1.5
        return x


class Model(torch.nn.Module):
    """Latents [B,C,H,W] and text [B,T,W] -> [B,C,H,W]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(4, width)
        self.doubles = torch.nn.ModuleList([Double(width) for _ in range(2)])
        self.singles = torch.nn.ModuleList([Single(width) for _ in range(3)])
        self.leave = torch.nn.Linear(width, 4)

    def forward(self, x: Any, text: Any, transformer_options: Any, indexed: bool = False, shared: bool = False) -> Any:
        """`shared`: all of the batch have the first one's modulation."""
        batch, _, height, width = x.shape
        img = self.enter(x.flatten(2).transpose(1, 2))
        txt = text.clone()
        some = slice(0, 1) if shared else slice(None)
        vec = Modulation(img[some].mean(1).tanh(), txt[some].mean(1).tanh())
        pe = torch.linspace(0, 1, txt.shape[1] + img.shape[1])[None, :, None].repeat(1, 1, 4)
        for block in self.doubles:
            img, txt = block(img, txt, vec=vec, pe=pe, attn_mask=None, transformer_options=transformer_options)
        both = torch.cat((txt, img), dim=1)
        start = txt.shape[1] if indexed else None
        for block in self.singles:
            both = block(both, vec, start=start, transformer_options=transformer_options)
        return self.leave(both[:, txt.shape[1] :]).transpose(1, 2).reshape(batch, 4, height, width)


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


def call(batch: int, height: int, width: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * height + tokens)
    x = torch.randn(batch, 4, height, width, generator=generator)
    return x, torch.randn(batch, tokens, 16, generator=generator)


# The worker's client --------------------------------------------------------------------------------------------


def prepare(state: Mapping[str, Any]) -> None:
    """Nothing: this module is all there is."""
    torch.set_num_threads(1)


def rules() -> Rules:
    return Rules(intercepted=entries_of)


def block_settings() -> Settings:
    return Settings({"optimized_attention_override": torch.nn.functional.scaled_dot_product_attention}, fewest=4)


class Client:
    """Who calls the toy. Its weights are where they are, and nobody changes them."""

    packages = ("support",)
    entries = FORWARD
    backend = "inductor"
    worker = __name__
    environment = "toy"

    def __init__(self, when_missing: WhenMissing = "wait") -> None:
        self.when_missing = when_missing
        self.model = torch.nn.Module()
        self.followed: list[Progress] = []
        self.refused: Reason | None = None

    @property
    def component(self) -> Client:
        return self

    def context(self, module: torch.nn.Module) -> RequestContext:
        worker = job.ClientModule(self.worker, {})
        return RequestContext("block", ModelSource(None, "0123456789ab"), worker, self.environment)

    def rules(self) -> Rules:
        return rules()

    def refusal(self, run: Any) -> Reason | None:
        return self.refused

    def skeleton(self, run: Any, name: str, block: torch.nn.Module, guard: Any) -> torch.nn.Module:
        return block

    def slots(self, block: torch.nn.Module) -> list[MethodSlot]:
        return [own_slot(block, name) for name in sorted(entries_of(block))]

    def before_call(self, run: Any, block: torch.nn.Module) -> None:
        pass

    def requested(self, request: Request) -> None:
        pass

    def call_refusal(self) -> Reason | None:
        return None

    def attention(self, options: Any) -> Attention:
        return "captured"

    def compared(self, options: Any) -> Any:
        return options

    def with_memory(self, run: Any, request: Request, x: torch.Tensor) -> Request:
        return request

    def follow(self, label: str) -> Callable[[Progress], None]:
        return self.followed.append
