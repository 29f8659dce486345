"""How a model calls its blocks, told without its weights and without a GPU: it is called once, with fake tensors."""

from __future__ import annotations

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

_TOKENS, _SIDE, _FRAMES = 256, 128, 5  # of the call, in units of latents: graphs serve other sizes
_TIME = 500.0
# By which names the host's models take the width of texts, and of pooled ones, in configurations and arguments.
_TEXT = (
    "context_in_dim", "cap_feat_dim", "joint_attention_dim", "text_dim", "context_dim", "cross_attention_dim",
    "caption_channels", "txtdim",
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
    described = skeleton.dump(module)
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
    import dataclasses

    options, packages = plain_options(kind.options), client.packages
    calls = KindCalls(kind.names[0], kind.form, tuple(kind.records), outer, options, packages)
    return dataclasses.replace(made, calls=calls, model=module)


def _walk(patcher: Any, described: bytes, client: HostBlockClient, backend: Backend, device: torch.device) -> Walk:
    """Call a model as the host does at a step of a sampling. The patcher's model is as before afterwards."""
    model = patcher.model
    module, calls = model.diffusion_model, list[ModelCall]()
    try:
        with backend.capture_settings(), torch.no_grad():
            model.diffusion_model = fake = skeleton.load(described, device)
            conditions = _conditions(model, device)
            hook = fake.register_forward_pre_hook(
                lambda module, args, kwargs: calls.append(ModelCall(args, kwargs)), with_kwargs=True
            )
            noise = _noise(model, device)
            with recording(repeated_blocks(fake), client.rules(), client.packages) as recorded:
                model._apply_model(
                    noise, torch.ones(1, device=device), transformer_options={"cond_or_uncond": [0]}, **conditions
                )
            hook.remove()
    except Exception as error:
        raise CaptureError(
            f"The model cannot be called without a run ({type(error).__name__}: {in_brief(error)}); "
            "compile it on a machine that has the GPU."
        ) from error
    finally:
        model.diffusion_model = module
    if recorded.unknown:
        name, argument = next(iter(recorded.unknown.items()))
        raise CaptureError(f"The block {name} is given {argument}, for which no graph can stand; it runs uncompiled.")
    return Walk(recorded, ModelCall(*map(_with_values, calls[0][:2])))


def _noise(model: Any, device: torch.device) -> torch.Tensor:
    latent = model.latent_format
    frames = [_FRAMES] if latent.latent_dimensions == 3 else []
    return torch.zeros(1, latent.latent_channels, *frames, _SIDE, _SIDE, device=device)


def _conditions(model: Any, device: torch.device) -> dict[str, Any]:
    """What the host's sampler gives a model besides latents and timestep."""
    noise = _noise(model, device)
    given: dict[str, Any] = {"noise": noise, "latent_image": noise, "device": device, "guidance": 3.5}
    given["cross_attn"] = torch.zeros(1, _TOKENS, _width(model, _TEXT), device=device)
    pooled = _width(model, _POOLED, 0)
    if pooled:
        given["pooled_output"] = torch.zeros(1, pooled, device=device)
    made = model.extra_conds(**given)
    conditions = {name: one.process_cond(batch_size=1, device=device, area=None).cond for name, one in made.items()}
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in conditions.items()}


def _width(model: Any, names: tuple[str, ...], missing: int | None = None) -> int:
    config = model.model_config.unet_config
    arguments = inspect.signature(type(model.diffusion_model).__init__).parameters
    for name in names:
        default = arguments[name].default if name in arguments else None
        value = config.get(name, default)
        if isinstance(value, int):
            return value
    if missing is None:
        raise ValueError("its configuration names no width of texts")
    return missing


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
