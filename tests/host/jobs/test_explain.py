"""What `onegraph explain` tells of a checkpoint's text models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.comfyui import texts
from support.scenes.nodes import compiled_clip

from onegraph.host.jobs.explain import text_findings


@pytest.mark.usefixtures("inference", "graphs_home", "fresh_process")
def test_text_graphs_are_told_of_where_there_are_some(tmp_path: Path) -> None:
    qwen = texts.TEXTS["qwen 3"]
    small = dataclasses.replace(qwen, config={**qwen.config, "intermediate_size": 80})  # whose graphs no other test has
    clip, checkpoint = texts.loaded(small, torch.float32), tmp_path / "model.safetensors"
    checkpoint.write_bytes(b"weights")
    assert not [*text_findings(clip, checkpoint, "inductor")]  # and none is missed
    other = compiled_clip(texts.loaded(small, torch.float32, seed=2))
    other.generate(texts.tokens(9), max_length=4, do_sample=False)
    found = [*text_findings(clip, checkpoint, "inductor")]
    assert {one.verdict for one in found} == {"hit"} and len(found) == 2  # a prompt, a token
