"""Compile VAE (OneGraph)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from typing_extensions import override

from ..host.calls.vae.hook import Parts, VaeNodeOptions, compile_vae
from ..host.calls.vae.resolutions import DynamicResolution
from ..host.show.progress import show_intro
from ..runtime.request import WhenMissing
from . import inputs


class OneGraphCompileVAE(io.ComfyNode):
    """Hands on a copy of a VAE that runs through compiled graphs. Node id and input names are final."""

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OneGraphCompileVAE",
            display_name="Compile VAE (OneGraph)",
            category="model/onegraph",
            description=(
                "Runs the VAE through compiled graphs that are stored beside the checkpoint. The VAE you put in stays "
                "as it is; wire the one that comes out wherever it should be compiled, to one node or several."
            ),
            search_aliases=[*inputs.SEARCHED, "vae speed up"],
            inputs=[
                io.Vae.Input(
                    "vae",
                    tooltip="VAEs of SD, SDXL, SD 3, Flux, FLUX.2, Z-Image, Qwen-Image, Wan, TAESD; others pass.",
                ),
                inputs.parts(),
                inputs.dynamic_resolution(),
                inputs.when_missing(),
                inputs.backend(),
            ],
            outputs=[io.Vae.Output()],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            has_intermediate_output=True,  # a cached node's `ui` is in the history, too
            not_idempotent=True,  # the result knows its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(
        cls, vae: Any, parts: Parts, dynamic_resolution: DynamicResolution, when_missing: WhenMissing, backend: str
    ) -> io.NodeOutput:
        node_id = cls.hidden.unique_id if cls.hidden else None
        dynprompt = cls.hidden.dynprompt if cls.hidden else None
        options = VaeNodeOptions(backend, parts, dynamic_resolution, when_missing)
        compiled, text = compile_vae(vae, options, node_id, dynprompt)
        return io.NodeOutput(compiled, ui=show_intro(node_id, text=text))
