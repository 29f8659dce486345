"""Generate Text in the real server, with a real tokenizer: the same words by graphs, in the next process, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import host, server, workflows
from support.comfyui.installation import environment_of

pytestmark = pytest.mark.full
WORDS = ("a lighthouse at dusk", "an old map of a city that nobody has ever seen, drawn with a very fine brush")


def prompt_of(compiled: bool, words: str, length: int = 24, seed: int = 1) -> workflows.Prompt:
    """A text that goes on from some words, through Compile CLIP or not."""
    sampling = {"temperature": 0.9, "top_k": 64, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05}
    choices = {"parts": "generation", "when_missing": "wait", "backend": "inductor"}
    prompt: workflows.Prompt = {
        "load": {"class_type": "OneGraphTestSmallText", "inputs": {"seed": 3}},
        "write": {
            "class_type": "TextGenerate",
            "inputs": {
                "clip": ["compile" if compiled else "load", 0],
                "prompt": words,
                "max_length": length,
                "sampling_mode": "on",
                **{f"sampling_mode.{name}": value for name, value in (sampling | {"seed": seed}).items()},
            },
        },
        "show": {"class_type": "PreviewAny", "inputs": {"source": ["write", 0]}},
    }
    if compiled:
        prompt["compile"] = {"class_type": "OneGraphCompileCLIP", "inputs": {"clip": ["load", 0], **choices}}
    return prompt


def test_a_text_is_written_by_graphs_in_the_next_process_too(tmp_path: Path) -> None:
    base, environment = server.prepare_base(tmp_path / "comfyui"), environment_of(tmp_path / "home")
    asked = [(words, length, seed) for words in WORDS for length, seed in ((24, 1), (40, 2))]
    with server.running(base, host.comfyui_path(), env=environment) as first:
        wanted = [first.run(prompt_of(False, *one)).written for one in asked]
        assert all(len(one) == 1 and one[0] for one in wanted) and len({one[0] for one in wanted}) == len(asked)
        found = [first.run(prompt_of(True, *one)) for one in asked]
        assert [one.written for one in found] == wanted
        assert (first.status()["compiles"], first.status()["eager_calls"]) == (2, 6), first.status()["reasons"]
        assert found[-1].text("compile").startswith("generation: block graphs: 3 of 3 blocks compiled")
    with server.running(base, host.comfyui_path(), env=environment) as second:
        assert [second.run(prompt_of(True, *one)).written for one in asked] == wanted
        status = second.status()
        assert (status["compiles"], status["eager_calls"]) == (0, 0), status
