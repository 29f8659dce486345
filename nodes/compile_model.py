"""Compile Model (OneGraph)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from typing_extensions import override

from ..host.calls.model_hook import compile_model
from ..host.comfyui.options import ModelNodeOptions
from ..host.show.progress import show_intro
from ..runtime.family import Shapes
from ..runtime.request import WhenMissing
from . import inputs


class OneGraphCompileModel(io.ComfyNode):
    """Attaches compiled graphs to a MODEL. Node id and input names are final."""

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OneGraphCompileModel",
            display_name="Compile Model (OneGraph)",
            category="model/onegraph",
            description=(
                "Runs the model's UNet, or each block of a diffusion transformer, through compiled graphs "
                "that are stored beside the checkpoint. The first sampling step compiles them or restores cached "
                "ones. Everything else runs as usual, and the node shows why."
            ),
            search_aliases=[*inputs.SEARCHED, "unet", "flux"],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="SD 1.x, SD 2.x, SDXL, refiner, SVD; Flux, Z-Image, Qwen-Image, Wan, other transformers.",
                ),
                inputs.backend(),
                inputs.shapes(),
                inputs.when_missing(),
            ],
            outputs=[io.Model.Output()],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            has_intermediate_output=True,  # a cached node's `ui` is in the history, too
            not_idempotent=True,  # the result knows its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(cls, model: Any, backend: str, shapes: Shapes, when_missing: WhenMissing) -> io.NodeOutput:
        node_id = cls.hidden.unique_id if cls.hidden else None
        dynprompt = cls.hidden.dynprompt if cls.hidden else None
        compiled, text = compile_model(model, ModelNodeOptions(backend, shapes, when_missing), node_id, dynprompt)
        return io.NodeOutput(compiled, ui=show_intro(node_id, text=text))
