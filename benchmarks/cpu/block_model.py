"""A small model whose blocks have as many weights and arguments as those of FLUX, and who calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from onegraph.compiler.blocks.capture import Settings
from onegraph.compiler.blocks.other_sizes import FORWARD
from onegraph.compiler.code.fingerprint import Rules
from onegraph.compiler.process import job
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.runtime.calls.routing import MethodSlot, own_slot
from onegraph.runtime.request import RequestContext

OVERRIDE = "optimized_attention_override"


@dataclass
class Modulation:
    """As FLUX's `ModulationOut`."""

    shift: torch.Tensor
    scale: torch.Tensor
    gate: torch.Tensor


def _attention(q: Any, k: Any, v: Any, options: Any) -> Any:
    attend = options.get(OVERRIDE, torch.nn.functional.scaled_dot_product_attention)
    return attend(q, k, v).transpose(1, 2).flatten(2)


class Double(torch.nn.Module):
    """Two streams with weights of their own, both changed in place: 16 weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for stream in ("img", "txt"):
            setattr(self, f"{stream}_qkv", torch.nn.Linear(width, 3 * width))
            setattr(self, f"{stream}_out", torch.nn.Linear(width, width))
            setattr(self, f"{stream}_up", torch.nn.Linear(width, 2 * width))
            setattr(self, f"{stream}_down", torch.nn.Linear(2 * width, width))

    def forward(
        self,
        img: Any,
        txt: Any,
        vec: Any,
        pe: Any,
        attn_mask: Any = None,
        modulation_dims_img: Any = None,
        modulation_dims_txt: Any = None,
        transformer_options: Any = {},  # noqa: B006
    ) -> Any:
        patches = transformer_options.get("patches", {})
        if "attn1_patch" in patches or "attn1_output_patch" in patches:
            raise NotImplementedError
        streams = {"txt": txt, "img": img}
        found = []
        for (name, x), one in zip(streams.items(), vec, strict=True):
            qkv = getattr(self, f"{name}_qkv")(x * (1 + one.scale[:, None]) + one.shift[:, None])
            found.append(qkv.reshape(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4))
        q, k, v = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        attended = _attention(q + pe, k + pe, v, transformer_options)
        parts = attended[:, : txt.shape[1]], attended[:, txt.shape[1] :]
        for (name, x), one, part in zip(streams.items(), vec, parts, strict=True):
            x += getattr(self, f"{name}_out")(part) * one.gate[:, None]
            x += getattr(self, f"{name}_down")(torch.nn.functional.gelu(getattr(self, f"{name}_up")(x)))
        return img, txt


class Single(torch.nn.Module):
    """One stream: 4 weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, 5 * width)
        self.second = torch.nn.Linear(3 * width, width)

    def forward(
        self,
        x: Any,
        vec: Any,
        pe: Any,
        attn_mask: Any = None,
        modulation_dims: Any = None,
        transformer_options: Any = {},  # noqa: B006
    ) -> Any:
        patches = transformer_options.get("patches", {})
        if "attn1_patch" in patches or "attn1_output_patch" in patches:
            raise NotImplementedError
        width = x.shape[-1]
        both = self.first(x * (1 + vec.scale[:, None]) + vec.shift[:, None])
        q, k, v = both[..., : 3 * width].reshape(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        attended = _attention(q + pe, k + pe, v, transformer_options)
        x += self.second(torch.cat((attended, torch.nn.functional.gelu(both[..., 3 * width :])), 2)) * vec.gate[:, None]
        return x


class Model(torch.nn.Module):
    """Latents [B,N,W] and text [B,T,W] -> [B,N,W]."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.doubles = torch.nn.ModuleList([Double(width) for _ in range(depth)])
        self.singles = torch.nn.ModuleList([Single(width) for _ in range(2 * depth)])

    def forward(self, x: Any, text: Any, transformer_options: Any) -> Any:
        img, txt = x.clone(), text.clone()
        pe = torch.linspace(0, 1, img.shape[1] + txt.shape[1])[None, None, :, None].repeat(1, 1, 1, 4)
        vec = [Modulation(one.mean(1).tanh(), one.mean(1).tanh(), one.mean(1).tanh()) for one in (txt, img)]
        for block in self.doubles:
            img, txt = block(img=img, txt=txt, vec=tuple(vec), pe=pe, transformer_options=transformer_options)
        both = torch.cat((txt, img), dim=1)
        for block in self.singles:
            both = block(both, vec=vec[1], pe=pe, attn_mask=None, transformer_options=transformer_options)
        return both[:, txt.shape[1] :]


def model() -> Model:
    torch.manual_seed(0)
    return Model().eval().requires_grad_(False)


def call() -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Arguments of a call, with as many options as ComfyUI gives."""
    options = {"sigmas": torch.ones(2), "cond_or_uncond": [0], "uuids": [1], "sample_sigmas": torch.ones(9)}
    return torch.randn(1, 24, 16), torch.randn(1, 9, 16), {**options, "patches": {}, "wrappers": {}, "callbacks": {}}


# Of the compiling process ---------------------------------------------------------------------------------------


def prepare(state: Mapping[str, Any]) -> None:
    """Nothing: this module is all there is."""
    torch.set_num_threads(1)


def rules() -> Rules:
    return Rules(intercepted=lambda module: frozenset({"forward"}))


def block_settings() -> Settings:
    return Settings({OVERRIDE: torch.nn.functional.scaled_dot_product_attention}, fewest=4)


class Client:
    """Who calls the model. Its weights are where they are, and nobody changes them."""

    packages = ("block_model",)
    entries = FORWARD
    backend = "inductor"
    when_missing = "wait"
    model = torch.nn.Module()

    @property
    def component(self) -> Client:
        return self

    def context(self, module: torch.nn.Module) -> RequestContext:
        return RequestContext(
            "block", ModelSource(None, "0123456789ab"), job.ClientModule("block_model", {}), "benchmark"
        )

    def rules(self) -> Rules:
        return rules()

    def refusal(self, run: Any) -> None:
        return None

    def skeleton(self, run: Any, name: str, block: torch.nn.Module, guard: Any) -> torch.nn.Module:
        return block

    def slots(self, block: torch.nn.Module) -> list[MethodSlot]:
        return [own_slot(block)]

    def requested(self, request: Any) -> None: ...

    def before_call(self, run: Any, block: torch.nn.Module) -> None: ...

    def call_refusal(self) -> None:
        return None

    def attention(self, options: Any) -> Any:
        return "called" if OVERRIDE in options else "captured"

    def compared(self, options: Any) -> Any:
        return options

    def with_memory(self, run: Any, request: Any, x: torch.Tensor) -> Any:
        return request

    def follow(self, label: str) -> Callable[[Any], None]:
        return lambda progress: None
