"""What is changed of ComfyUI while a block is captured, in the compiling process only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...compiler.blocks.capture import Settings
from ..comfyui import contract
from ..families.family import attention as torch_attention
from ..families.family import one_path
from ..families.vae_seedvr import whole_inputs
from ..weights.plain import plain_block
from ..weights.products import products
from .attention import OVERRIDE, overridden, standing_in


def settings() -> Settings:
    """How ComfyUI's blocks are captured: with torch's attention or calls of another, and rotary embeddings in torch."""
    return Settings(
        overrides={OVERRIDE: torch_attention},
        stand_ins={OVERRIDE: overridden},
        standing_in=standing_in,
        rewrites=_rewrites,
        plain=plain_block,
    )


@contextlib.contextmanager
def _rewrites() -> Iterator[None]:
    from comfy import model_management

    like = torch.empty(0, device=model_management.get_torch_device())
    rewrites = (
        plain_rotations, gathered_modulation, gathered_timesteps, whole_sequences, whole_images, whole_inputs, products
    )  # fmt: skip
    with contextlib.ExitStack() as lasting:
        for rewrite in rewrites:
            lasting.enter_context(rewrite())
        with one_path(like), SpacedNumbers():
            yield


@contextlib.contextmanager
def plain_rotations() -> Iterator[None]:
    """Have comfy-kitchen's rotary operations computed by its own code of tensor operations.

    Its operations choose a kernel by the device and by addresses, which no capture can follow. Without comfy-kitchen
    the host's code is such code already.
    """
    try:
        import comfy_kitchen as kitchen
        from comfy_kitchen.backends.eager import rope
    except ImportError:
        yield
        return
    plain = {name: getattr(rope, name) for name in dir(rope) if "rope" in name and not name.startswith("_")}
    plain = {name: one for name, one in plain.items() if callable(one) and hasattr(kitchen, name)}
    before = {name: getattr(kitchen, name) for name in plain}
    check = getattr(rope, "check_rope_inplace", None)
    try:
        for name, function in plain.items():
            setattr(kitchen, name, function)
        if check is not None:
            rope.check_rope_inplace = lambda *args, **kwargs: None  # asks for addresses
        yield
    finally:
        for name, function in before.items():
            setattr(kitchen, name, function)
        if check is not None:
            rope.check_rope_inplace = check


@contextlib.contextmanager
def gathered_modulation() -> Iterator[None]:
    """Have MiniMax H3 modulate each token by the row of its segment, gathered at once.

    The host's code writes one slice after the other, whose bounds differ from call to call; Inductor cannot compile
    that. Its segments cover all tokens once.
    """
    if contract.missing(contract.MINIMAX):
        yield
        return
    from comfy.ldm.minimax import model

    before = model._mod_scale_shift, model._mod_gate
    model._mod_scale_shift, model._mod_gate = _scaled_and_shifted, _gated
    try:
        yield
    finally:
        model._mod_scale_shift, model._mod_gate = before


@contextlib.contextmanager
def gathered_timesteps() -> Iterator[None]:
    """Have Wan give each token the modulation of its frame by a gather.

    The host's code asks whether frames have a whole number of tokens, and repeats; Inductor cannot compile that.
    """
    if contract.missing(contract.WAN):
        yield
        return
    from comfy.ldm.wan import model as wan

    before = wan.repeat_e
    wan.repeat_e = _of_each_token
    try:
        yield
    finally:
        wan.repeat_e = before


class SpacedNumbers(TorchFunctionMode):
    """Has `torch.linspace` give as many numbers as a size says that varies, of which it fixes the value."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        numbers = dict(zip(("start", "end", "steps"), args, strict=False)) | (kwargs or {})
        if func is not torch.linspace or not isinstance(numbers["steps"], torch.SymInt):
            return func(*args, **(kwargs or {}))
        start, end, steps = (numbers.pop(name) for name in ("start", "end", "steps"))
        return (
            torch.arange(steps, **{"dtype": torch.float32, **numbers}) / torch.sym_max(steps - 1, 1) * (end - start)
            + start
        )


@contextlib.contextmanager
def whole_sequences() -> Iterator[None]:
    """Have Kandinsky 5 compute a sequence of any length at once.

    The host's code computes one beyond some length in chunks, with the same result: its graph would serve others alone.
    """
    if contract.missing(contract.KANDINSKY):
        yield
        return
    from comfy.ldm.kandinsky5 import model as kandinsky

    classes: tuple[Any, ...] = (kandinsky.SelfAttention, kandinsky.FeedForward)
    before = [cls.forward for cls in classes]
    for cls in classes:
        cls.forward = _as_a_short_one(cls.forward)
    try:
        yield
    finally:
        for cls, forward in zip(classes, before, strict=True):
            cls.forward = forward


def _as_a_short_one(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that calls `_forward` whatever the length, as the host's does where it is short.

    The host's runs all the same: a graph is right as long as it is what it was.
    """

    def taken(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        whole = SimpleNamespace(_forward=lambda _, *more, **named: self._forward(x, *more, **named))
        return forward(whole, SimpleNamespace(shape=(1, 1)), *args, **kwargs)

    return taken


@contextlib.contextmanager
def whole_images() -> Iterator[None]:
    """Have PixelDiT's blocks of pixels compute all patches of an image at once.

    The host's code does so in a few chunks, by a loop whose steps are numbers: its graph would serve one size.
    """
    if contract.missing(contract.PIXELDIT):
        yield
        return
    from comfy.ldm.pixeldit import modules

    space: Any = modules
    space.range, space.min = _one_step, _to_the_end
    try:
        yield
    finally:
        del space.range, space.min


def _one_step(*bounds: Any) -> Any:
    """`range`, of one step where its end is a size that varies."""
    return range(*bounds) if not any(isinstance(one, torch.SymInt) for one in bounds) else bounds[:1]


def _to_the_end(*ends: Any) -> Any:
    """`min` of the end of a step and of all, of which the first is not known where there is one step."""
    return min(ends) if not any(isinstance(one, torch.SymInt) for one in ends) else ends[-1]


def _of_each_token(e: Any, x: Any) -> Any:
    """What `repeat_e` gives, [batch, 1 or tokens, width]: `e` [batch, frames, width] for `x` [batch, tokens, width]."""
    frames, tokens = e.shape[1], x.shape[1]
    if type(frames) is int and frames == 1:
        return e
    each = (tokens + frames - 1) // frames
    return e[:, torch.arange(tokens, device=e.device) // each]


def _rows(tokens: torch.Tensor, segments: Sequence[tuple[Any, Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The row of each token [S], and whether it is in a segment at all [S, 1].

    Args:
        segments: start, stop and row; or the row of each token there [stop - start], as under a mask.
    """
    place = torch.arange(tokens.shape[0], device=tokens.device)
    row, inside = torch.zeros_like(place), torch.zeros_like(place, dtype=torch.bool)
    for start, stop, number in segments:
        here = (place >= start) & (place < stop)
        of_token = number[(place - start) * here] if isinstance(number, torch.Tensor) else number
        row, inside = row + here * of_token, inside | here
    return row, inside[:, None]


def _scaled_and_shifted(h: Any, shift: Any, scale: Any, segments: Any) -> Any:
    row, inside = _rows(h, segments)
    return torch.where(inside, h * (1.0 + scale[row].to(h.dtype)) + shift[row].to(h.dtype), h)


def _gated(x: Any, gate: Any, other: Any, segments: Any) -> Any:
    row, inside = _rows(x, segments)
    return x.copy_(torch.where(inside, x + other * gate[row].to(x.dtype), x))  # in place, as the host does
