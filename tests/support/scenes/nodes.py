"""Models as OneGraph's nodes hand them on, and what the last run of these says."""

from __future__ import annotations

from typing import Any

import torch

from .judge import FURTHEST, distance

NODE, SECOND = "7", "8"  # of the model and of a second one


def compiled(model: Any, node: str = NODE, **options: Any) -> Any:
    """The MODEL as Compile Model hands it on."""
    from onegraph.host.calls import model_hook

    return model_hook.compile_model(model, model_hook.ModelNodeOptions(**{"backend": "inductor", **options}), node)[0]


def restored(model: Any, node: str = NODE) -> Any:
    """The same where nothing is compiled: what has no graph in the store runs eager."""
    return compiled(model, node, when_missing="eager")


def compiled_net(net: Any, node: str = NODE, **options: Any) -> Any:
    """The CONTROL_NET as Compile ControlNet hands it on."""
    from onegraph.host.calls.controlnet_hook import compile_controlnet
    from onegraph.host.calls.model_hook import ModelNodeOptions

    return compile_controlnet(net, ModelNodeOptions(**{"backend": "inductor", **options}), node)[0]


def compiled_vae(vae: Any, node: str = NODE, **options: Any) -> Any:
    """The VAE as Compile VAE hands it on, with both halves compiled."""
    from onegraph.host.calls.vae import hook

    return hook.compile_vae(vae, hook.VaeNodeOptions(**{"parts": "both", **options}), node)[0]


def compiled_clip(clip: Any, node: str = NODE, **options: Any) -> Any:
    """The CLIP as Compile CLIP hands it on, with all texts compiled."""
    from onegraph.host.calls.clip_hook import ClipNodeOptions, compile_clip

    return compile_clip(clip, ClipNodeOptions(**{"backend": "inductor", "parts": "both", **options}), node)[0]


def told(node: str = NODE) -> str:
    """What the node shows after its last run."""
    from onegraph.host.show import status

    return status.last_runs[node].text()


def blocks(node: str = NODE) -> dict[str, Any]:
    """What the last run says of its blocks."""
    from onegraph.host.show import status

    found: dict[str, Any] = status.last_runs[node].to_json()["blocks"]
    return found


def assert_close(found: torch.Tensor, wanted: torch.Tensor, within: float = FURTHEST, node: str = NODE) -> None:
    """A compiled run's result is eager's."""
    far = distance(found, wanted)
    assert far < within, f"relative L2 {far:.3g} ({told(node)})"
