"""LoRA and merges: weights change, graphs stay."""

from __future__ import annotations

from ..scenes.judge import eager
from .case import BOTH, Case, flow, one, part

_LORA, _MERGE = "LoRA", "Merged models"
_first = part("lora", number=0, strength=1.0)
_second = part("lora", number=1, strength=0.8)
_weak = part("lora", number=0, strength=0.4)
_hook = {"number": 0, "strength": 1.0}

CASES: tuple[Case, ...] = (
    one(_LORA, "before the node", _first, node=1, backends=BOTH, reports=("onediff #936", "WaveSpeed: LoRA lost")),
    one(_LORA, "after the node", _first, backends=BOTH, reports=("KJNodes #131", "ComfyUI_TensorRT #42")),
    one(_LORA, "negative strength", part("lora", number=0, strength=-0.5), node=1),
    one(_LORA, "two, around the node", _first, _second, node=1),
    Case("stronger, weaker, removed", _LORA, (flow(_first, node=1), flow(_weak, node=1), flow()), backends=BOTH,
        reports=("onediff #936", "KJNodes #133", "KJNodes #151", "KJNodes #289")),
    one(_LORA, "bypass loader", part("bypass_lora", number=0, strength=1.0), node=1, **eager("injection")),
    one(_LORA, "on one text by a hook", part("hook_lora", **_hook, second_half=None, both="no")),
    one(_LORA, "scheduled by hook keyframes", part("hook_lora", **_hook, second_half=0.4, both="yes"), backends=BOTH),
    one(_LORA, "checkpoint as LoRA by a hook", part("hook_model", strength_model=0.6)),
    one(_LORA, "in a second sampling only", part("other_lora_after")),
    one(_MERGE, "simple, before the node", part("merge", ratio=0.5), node=1, backends=BOTH),
    one(_MERGE, "simple, after the node", part("merge", ratio=0.5), backends=BOTH),
    one(_MERGE, "node's model merged into another", part("merge_into_second", ratio=0.5), **eager()),
    one(_MERGE, "blocks, before the node", part("merge_blocks", input=0.2, middle=0.5, out=0.9), node=1),
    one(_MERGE, "blocks, after the node", part("merge_blocks", input=0.2, middle=0.5, out=0.9)),
    one(_MERGE, "difference added", part("add_difference", multiplier=0.5), node=1),
    one(_MERGE, "and a LoRA", part("merge", ratio=0.5), _first, node=1),
)  # fmt: skip
