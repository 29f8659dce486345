"""How a model calls its blocks, told without its weights and without a GPU: it is called once, with fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ...backends import Backend
from ...common.errors import CaptureError, in_brief
from ...common.refused import Refused
from ...compiler import skeleton
from ...compiler.blocks.kind import KindCalls
from ...compiler.blocks.outer_call import ModelCall, OuterCall, plain_options
from ...compiler.blocks.records import Kind, Recording, recording
from ...compiler.blocks.repeated import repeated_blocks
from ...runtime.calls.requests import block_request
from ...runtime.request import Request
from ...signature.call_tree import TensorForm, leaf_forms, to_json
from ..calls.block_hook import HostBlockClient
from ..capture import compile_client

_TOKENS, _SIDE, _FRAMES = 256, 128, 5  # of the call, in units of latents: graphs serve other sizes
_TIME = 500.0
# By which names the host's models take the width of texts, and of pooled ones, in configurations and arguments.
_TEXT = (
    "context_in_dim", "cap_feat_dim", "joint_attention_dim", "text_dim", "context_dim", "cross_attention_dim",
    "caption_channels",
)  # fmt: skip
_POOLED = ("vec_in_dim", "adm_in_channels", "pooled_projection_dim")


class Walk(NamedTuple):
    """What one call of a model has shown: its blocks' calls, and its own."""

    recorded: Recording
    outer: ModelCall


def block_requests(patcher: Any, client: HostBlockClient, backend: Backend, device: torch.device) -> Iterator[Request]:
    """Yield the requests for the graphs of all kinds of a model's blocks.

    Args:
        patcher: the host's; its weights may be on the meta device.
        device: of the graphs.

    Raises:
        CaptureError: the model cannot be called without a run, or no graph can serve its blocks.
    """
    module = patcher.model.diffusion_model
    described = skeleton.dump(module, client.rules().composites)
    walked = _walk(patcher, described, client, backend, device)
    outer = OuterCall.of(module, walked.outer)
    blocks = repeated_blocks(module)
    for kind in walked.recorded.kinds:
        first = next(one for one in leaf_forms(kind.form) if isinstance(one, TensorForm))
        shapes = {"form": to_json(kind.form)}
        made = block_request(client, blocks[kind.names[0]], kind.structure, shapes, first.dtype, device)
        if isinstance(made, Refused):
            raise CaptureError(made.text)
        yield _with_calls(made, kind, outer, client, module)


def _with_calls(made: Request, kind: Kind, outer: OuterCall, client: HostBlockClient, module: Any) -> Request:
    options, packages = plain_options(kind.options), client.packages
    calls = KindCalls(kind.names[0], kind.form, tuple(kind.records), outer, options, packages)
    return dataclasses.replace(made, calls=calls, model=module)


def _walk(patcher: Any, described: bytes, client: HostBlockClient, backend: Backend, device: torch.device) -> Walk:
    """Call a model as the host does at a step of a sampling: of a video, or of an image where it makes no other."""
    try:
        with contextlib.suppress(RuntimeError):
            return _called(patcher.model, described, client, backend, _Step(device, _FRAMES))
        return _called(patcher.model, described, client, backend, _Step(device, 1))
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"The model cannot be called without a run ({type(error).__name__}: {in_brief(error)}); "
            "compile it on a machine that has the GPU."
        ) from error


def _called(model: Any, described: bytes, client: HostBlockClient, backend: Backend, step: _Step) -> Walk:
    """Note one call of a model and of its blocks. The model is as before afterwards."""
    module, calls = model.diffusion_model, list[ModelCall]()
    try:
        with backend.capture_settings(), torch.no_grad():
            model.diffusion_model = fake = skeleton.load(described, step.device, compile_client.class_of)
            conditions = _conditions(model, step)
            fake.register_forward_pre_hook(
                lambda module, args, kwargs: calls.append(ModelCall(args, kwargs)), with_kwargs=True
            )
            options = {"cond_or_uncond": [0]}
            with recording(repeated_blocks(fake), client.rules(), client.packages) as recorded:
                time = torch.ones(1, device=step.device)
                model._apply_model(step.noise(model), time, transformer_options=options, **conditions)
    finally:
        model.diffusion_model = module
    if recorded.unknown:
        name, argument = next(iter(recorded.unknown.items()))
        raise CaptureError(f"The block {name} is given {argument}, for which no graph can stand; it runs uncompiled.")
    return Walk(recorded, ModelCall(*map(_with_values, calls[0][:2])))


class _Step(NamedTuple):
    """A step of a sampling, in which videos have so many frames."""

    device: torch.device
    frames: int

    def noise(self, model: Any) -> torch.Tensor:
        """Latents, as many as the model has."""
        latent = model.latent_format
        frames = [self.frames] if latent.latent_dimensions == 3 else []
        return torch.zeros(1, latent.latent_channels, *frames, _SIDE, _SIDE, device=self.device)


def _conditions(model: Any, step: _Step) -> dict[str, Any]:
    """What the host's sampler gives a model besides latents and timestep."""
    noise, device = step.noise(model), step.device
    given: dict[str, Any] = {"noise": noise, "latent_image": noise, "device": device, "guidance": 3.5}
    given["cross_attn"] = torch.zeros(1, _TOKENS, _text_width(model), device=device)
    pooled = _width(model, _POOLED)
    if pooled:
        given["pooled_output"] = torch.zeros(1, pooled, device=device)
    made = model.extra_conds(**given)
    conditions = {name: one.process_cond(batch_size=1, device=device, area=None).cond for name, one in made.items()}
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in conditions.items()}


def _text_width(model: Any) -> int:
    config = model.model_config.unet_config
    if "txtlayers" in config:  # of Krea 2, which reads several layers of its text encoder
        return int(config["txtlayers"] * config["txtdim"])
    embedder = config.get("context_embedder_config", {}).get("params", {})  # of SD 3
    width = int(embedder.get("in_features", 0)) or _width(model, _TEXT)
    if not width:
        raise ValueError("its configuration names no width of texts")
    return width


def _width(model: Any, names: tuple[str, ...]) -> int:
    config = model.model_config.unet_config
    arguments = inspect.signature(type(model.diffusion_model).__init__).parameters
    for name in names:
        default = arguments[name].default if name in arguments else None
        value = config.get(name, default)
        if isinstance(value, int):
            return value
    return 0


def _with_values(value: Any) -> Any:
    """Arguments with tensors that have values, which a description of the call holds where they are few."""
    if isinstance(value, torch.Tensor):
        filling = _TIME if value.ndim == 1 and value.is_floating_point() else 0
        return torch.full(value.shape, filling, dtype=value.dtype)
    if type(value) in (list, tuple):
        return type(value)(map(_with_values, value))
    if type(value) is dict:
        return {name: _with_values(one) for name, one in value.items()}
    return value
