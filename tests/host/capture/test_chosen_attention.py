"""Whose attention a model attends by, where other packages replace what the host's own functions call."""

from __future__ import annotations

import pkgutil
from typing import Any

import einops
import pytest
from headless import host
from support.models import dits

EXACT = ("attention_basic", "attention_sub_quad", "attention_split", "attention_pytorch")
# Where something is replaced, and by which of the host's functions that is called; none: it computes nothing.
REPLACED = {
    "torch.nn.functional.scaled_dot_product_attention": ("attention_pytorch",),
    "comfy.ops.scaled_dot_product_attention": ("attention_pytorch",),
    "comfy.ldm.modules.attention.efficient_dot_product_attention": ("attention_sub_quad",),
    "comfy.ldm.modules.sub_quadratic_attention.dynamic_slice": ("attention_sub_quad",),
    "torch.bmm": ("attention_sub_quad",),
    "comfy.ldm.modules.attention.attention_split": ("attention_split",),
    "comfy.model_management.get_free_memory": (),
    "torch.Tensor.unflatten": ("attention_sub_quad",),
}


# What an installed library has instead, as SageAttention is put in the place of torch's.
LIBRARYS = {
    "torch.nn.functional.scaled_dot_product_attention",
    "comfy.ops.scaled_dot_product_attention",
    "torch.bmm",
    "comfy.ldm.modules.attention.attention_split",
}


@pytest.fixture(autouse=True)
def booted() -> None:
    host.boot()


@pytest.mark.parametrize(
    ("name", "librarys"), [*((name, False) for name in REPLACED), *((name, True) for name in sorted(LIBRARYS))]
)
@pytest.mark.parametrize("chosen", EXACT)
def test_what_exact_attention_calls_is_the_hosts(
    chosen: str, name: str, librarys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comfy.ldm.modules import attention

    from onegraph.host.capture.attention import ChosenAttention

    model = dits.load("flux").model.diffusion_model

    def choose() -> None:
        import comfy.ldm.flux.math

        for space in (attention, comfy.ldm.flux.math):
            for used in ("optimized_attention", "optimized_attention_masked"):
                monkeypatch.setattr(space, used, getattr(attention, chosen), raising=used in vars(space))

    choose()
    attends = ChosenAttention(model, ("comfy",))
    assert attends.of_call({}) == "captured"
    home, _, attribute = name.rpartition(".")
    owner: Any = pkgutil.resolve_name(home)
    own: Any = getattr(owner, attribute)
    with monkeypatch.context() as patching:
        other = einops.rearrange if librarys else lambda *args, **kwargs: own(*args, **kwargs)
        patching.setattr(owner, attribute, other)
        choose()
        attends.look()
        assert attends.of_call({}) == ("called" if chosen in REPLACED[name] else "captured")
    choose()
    attends.look()
    assert attends.of_call({}) == "captured"
