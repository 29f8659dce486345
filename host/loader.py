"""ComfyUI's own checkpoint loader, for the node that loads and compiles in one."""

from __future__ import annotations

from typing import Any


def checkpoint_names() -> list[str]:
    """The files ComfyUI lists as checkpoints."""
    import folder_paths

    return list(folder_paths.get_filename_list("checkpoints"))


def load_checkpoint(name: str) -> tuple[Any, Any, Any]:
    """MODEL, CLIP and VAE of a checkpoint, exactly as Load Checkpoint gives them."""
    import nodes

    model, clip, vae = nodes.CheckpointLoaderSimple().load_checkpoint(name)
    return model, clip, vae
