"""Compile CLIP (OneGraph)."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io
from typing_extensions import override

from ..host.calls.clip_hook import ClipNodeOptions, Parts, compile_clip
from ..host.show.progress import show_intro
from ..runtime.request import WhenMissing
from . import inputs


class OneGraphCompileCLIP(io.ComfyNode):
    """Hands on a copy of a CLIP that runs through compiled graphs. Node id and input names are final."""

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="OneGraphCompileCLIP",
            display_name="Compile CLIP (OneGraph)",
            category="model/onegraph",
            description=(
                "Runs the text model's blocks through compiled graphs: texts that it generates, prompts that it "
                "encodes, or both. One set of graphs serves all lengths. The CLIP you put in stays as it is."
            ),
            search_aliases=[*inputs.SEARCHED, "text generation speed up", "llm", "prompt enhancer"],
            inputs=[
                io.Clip.Input(
                    "clip",
                    tooltip="Text models of Qwen 2.5, 3 and 3.5, Ministral 3, Gemma 2 to 4, T5 and CLIP; others pass.",
                ),
                inputs.texts(),
                inputs.when_missing(),
                inputs.backend(),
            ],
            outputs=[io.Clip.Output()],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            has_intermediate_output=True,  # a cached node's `ui` is in the history, too
            not_idempotent=True,  # the result knows its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(cls, clip: Any, parts: Parts, when_missing: WhenMissing, backend: str) -> io.NodeOutput:
        node_id = cls.hidden.unique_id if cls.hidden else None
        dynprompt = cls.hidden.dynprompt if cls.hidden else None
        compiled, text = compile_clip(clip, ClipNodeOptions(backend, parts, when_missing), node_id, dynprompt)
        return io.NodeOutput(compiled, ui=show_intro(node_id, text=text))
