"""What OneDiff's nodes do here, each as a function of its inputs' values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..common import reasons
from ..common.reasons import Reason
from ..host.calls import controlnet_hook, model_hook
from ..host.calls.vae import hook as vae_hook
from ..host.comfyui import loader
from ..host.comfyui.options import ModelNodeOptions
from ..host.show.progress import show_intro

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Booster:
    """What a booster hands to the node that compiles.

    Attributes:
        backend: for that node.
        lost: what the booster did in OneDiff and does not do here.
    """

    backend: str = "auto"
    lost: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class ExecutedNode:
    """The node that is executed."""

    node_id: str | None
    dynprompt: Any


Run = Callable[[Inputs, ExecutedNode], tuple[Any, ...]]  # the values of a node's outputs, in order


def _booster(inputs: Inputs) -> Booster:
    booster = inputs.get("custom_booster")
    return booster if isinstance(booster, Booster) else Booster()  # another pack's has no meaning here


def _text(first: str, lost: tuple[Reason, ...]) -> str:
    """A node's text: its own line, then one for each thing that it does not do."""
    return "\n".join([first, *(reason.text for reason in lost)])


def _compiled(model: Any, lost: tuple[Reason, ...], inputs: Inputs, node: ExecutedNode) -> tuple[Any, str]:
    booster = _booster(inputs)
    compiled, text = model_hook.compile_model(model, ModelNodeOptions(booster.backend), node.node_id, node.dynprompt)
    return compiled, _text(text, (*lost, *booster.lost))


def compile_model(*lost: Reason) -> Run:
    """Compile Model (OneGraph) on `model`."""

    def run(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
        compiled, text = _compiled(inputs["model"], lost, inputs, node)
        show_intro(node.node_id, text=text)
        return (compiled,)

    return run


def compile_vae(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
    """Compile VAE (OneGraph) on `vae`."""
    booster = _booster(inputs)
    compiled, text = vae_hook.compile_vae(
        inputs["vae"], vae_hook.VaeNodeOptions(booster.backend), node.node_id, node.dynprompt
    )
    show_intro(node.node_id, text=_text(text, booster.lost))
    return (compiled,)


def load_checkpoint(*lost: Reason) -> Run:
    """Load Checkpoint (OneGraph) on `ckpt_name`, with the VAE compiled only where `vae_speedup` is `enable`."""

    def run(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
        model, clip, vae = loader.load_checkpoint(inputs["ckpt_name"])
        compiled, about_model = _compiled(model, lost, inputs, node)
        if inputs.get("vae_speedup") != "enable":
            show_intro(node.node_id, text=about_model)
            return compiled, clip, vae
        options = vae_hook.VaeNodeOptions(_booster(inputs).backend)
        compiled_vae, about_vae = vae_hook.compile_vae(vae, options, node.node_id, node.dynprompt)
        show_intro(node.node_id, model=about_model, VAE=about_vae)
        return compiled, clip, compiled_vae

    return run


def compile_control_net(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
    """Compile ControlNet (OneGraph) on `control_net`."""
    booster = _booster(inputs)
    options = ModelNodeOptions(booster.backend)
    compiled, text = controlnet_hook.compile_controlnet(inputs["control_net"], options, node.node_id, node.dynprompt)
    show_intro(node.node_id, text=_text(text, booster.lost))
    return (compiled,)


def load_control_net(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
    """Load ControlNet Model on `control_net_name`, then Compile ControlNet (OneGraph)."""
    loaded = loader.load_control_net(inputs["control_net_name"])
    return compile_control_net({**inputs, "control_net": loaded}, node)


def pass_on(name: str, why: Reason) -> Run:
    """Hand on an input as it is."""

    def run(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
        show_intro(node.node_id, text=why.text)
        return (inputs[name],)

    return run


def end(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
    """End a workflow without saving anything."""
    show_intro(node.node_id, text=reasons.GraphsByThemselves().text)
    return ()


def make_booster(lost: Reason) -> Run:
    """A booster that tells what it does not do; `disable` turns compiling off."""

    def run(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
        backend = "off" if inputs.get("disable") else "auto"
        show_intro(node.node_id, text=lost.text)
        return (Booster(backend, (lost,)),)

    return run


def merge_boosters(inputs: Inputs, node: ExecutedNode) -> tuple[Any, ...]:
    """One booster of all that are connected."""
    boosters = [value for value in inputs.values() if isinstance(value, Booster)]
    backend = "off" if any(booster.backend == "off" for booster in boosters) else "auto"
    return (Booster(backend, tuple(reason for booster in boosters for reason in booster.lost)),)
