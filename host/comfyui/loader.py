"""ComfyUI's own loaders, for nodes that load and compile in one."""

from __future__ import annotations

from typing import Any

from . import contract
from .comfyui_nodes import comfyui_nodes


def checkpoint_names() -> list[str]:
    """The files ComfyUI lists as checkpoints."""
    if contract.refusal("loading") is not None:
        return []
    import folder_paths

    return list(folder_paths.get_filename_list("checkpoints"))


def load_checkpoint(name: str) -> tuple[Any, Any, Any]:
    """MODEL, CLIP and VAE of a checkpoint, exactly as Load Checkpoint gives them."""
    model, clip, vae = comfyui_nodes().CheckpointLoaderSimple().load_checkpoint(name)
    return model, clip, vae


def control_net_names() -> list[str]:
    """The files ComfyUI lists as ControlNets."""
    if contract.refusal("loading") is not None:
        return []
    import folder_paths

    return list(folder_paths.get_filename_list("controlnet"))


def load_control_net(name: str) -> Any:
    """A CONTROL_NET, exactly as Load ControlNet Model gives it."""
    return comfyui_nodes().ControlNetLoader().load_controlnet(name)[0]
