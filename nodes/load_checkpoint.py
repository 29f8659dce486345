"""Load Checkpoint (OneGraph)."""

from __future__ import annotations

from comfy_api.latest import io
from typing_extensions import override

from ..host.calls import model_hook
from ..host.calls.vae import hook as vae_hook
from ..host.calls.vae.resolutions import DynamicResolution
from ..host.comfyui import loader
from ..host.comfyui.options import ModelNodeOptions
from ..host.show.progress import show_intro
from ..runtime.family import Shapes
from ..runtime.request import WhenMissing
from . import inputs


class OneGraphLoadCheckpoint(io.ComfyNode):
    """Load Checkpoint, Compile Model and Compile VAE in one node. Node id and input names are final."""

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OneGraphLoadCheckpoint",
            display_name="Load Checkpoint (OneGraph)",
            category="model/onegraph",
            description="Load Checkpoint, with its model and VAE run through compiled graphs.",
            search_aliases=[*inputs.SEARCHED, "checkpoint", "load model"],
            inputs=[
                io.Combo.Input("ckpt_name", options=loader.checkpoint_names(), tooltip="The checkpoint to load."),
                inputs.backend(),
                inputs.shapes(),
                inputs.when_missing(),
                inputs.parts(),
                inputs.dynamic_resolution(),
            ],
            outputs=[io.Model.Output(), io.Clip.Output(), io.Vae.Output()],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            has_intermediate_output=True,  # a cached node's `ui` is in the history, too
            not_idempotent=True,  # the result knows its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(
        cls,
        ckpt_name: str,
        backend: str,
        shapes: Shapes,
        when_missing: WhenMissing,
        parts: vae_hook.Parts,
        dynamic_resolution: DynamicResolution,
    ) -> io.NodeOutput:
        node_id = cls.hidden.unique_id if cls.hidden else None
        dynprompt = cls.hidden.dynprompt if cls.hidden else None
        model, clip, plain_vae = loader.load_checkpoint(ckpt_name)
        compiled, about_model = model_hook.compile_model(
            model, ModelNodeOptions(backend, shapes, when_missing), node_id, dynprompt
        )
        options = vae_hook.VaeNodeOptions(backend, parts, dynamic_resolution, when_missing)
        compiled_vae, about_vae = vae_hook.compile_vae(plain_vae, options, node_id, dynprompt)
        return io.NodeOutput(compiled, clip, compiled_vae, ui=show_intro(node_id, model=about_model, VAE=about_vae))
