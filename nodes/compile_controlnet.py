"""Compile ControlNet (OneGraph)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from typing_extensions import override

from ..host.calls.controlnet_hook import compile_controlnet
from ..host.comfyui.options import ModelNodeOptions
from ..host.show.progress import show_intro
from ..runtime.family import Shapes
from ..runtime.request import WhenMissing
from . import inputs


class OneGraphCompileControlNet(io.ComfyNode):
    """Hands on a copy of a CONTROL_NET that runs through compiled graphs. Node id and input names are final."""

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OneGraphCompileControlNet",
            display_name="Compile ControlNet (OneGraph)",
            category="model/onegraph",
            description=(
                "Runs the ControlNet itself through a compiled graph that is stored beside its file. Strength, start "
                "and end need no new graph. The model that it steers is compiled by Compile Model (OneGraph)."
            ),
            search_aliases=[*inputs.SEARCHED, "controlnet speed up"],
            inputs=[
                io.ControlNet.Input(
                    "control_net",
                    tooltip="ControlNets of SD 1.x, SD 2.x, SDXL, Flux, Qwen-Image and SD 3; union types, ControlLora "
                    "and T2I adapters pass through.",
                ),
                inputs.backend(),
                inputs.shapes(),
                inputs.when_missing(),
            ],
            outputs=[io.ControlNet.Output()],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            has_intermediate_output=True,  # a cached node's `ui` is in the history, too
            not_idempotent=True,  # the result knows its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(cls, control_net: Any, backend: str, shapes: Shapes, when_missing: WhenMissing) -> io.NodeOutput:
        node_id = cls.hidden.unique_id if cls.hidden else None
        dynprompt = cls.hidden.dynprompt if cls.hidden else None
        compiled, text = compile_controlnet(
            control_net, ModelNodeOptions(backend, shapes, when_missing), node_id, dynprompt
        )
        return io.NodeOutput(compiled, ui=show_intro(node_id, text=text))
