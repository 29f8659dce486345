"""Sixty prompts: models and LoRAs in turns hold no more memory than eager does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import host, server, workflows

from .conftest import CHECKPOINT, LORA, SECOND, txt2img

PROMPTS, SETTLED = 60, 20


@pytest.fixture
def fresh(base: Path, environment: dict[str, str]) -> Iterator[server.Server]:
    # One arena: with several, what they keep apart of freed memory grows for a while without anything being held.
    with server.running(base, host.comfyui_path(), env={**environment, "MALLOC_ARENA_MAX": "1"}) as running:
        yield running


def test_sixty_prompts_with_models_and_loras_in_turns_hold_no_more_memory(fresh: server.Server) -> None:
    """A graph used to keep every weight that it was ever bound to: 38 MB a prompt for these models of 20 MB."""
    process, resident = psutil.Process(fresh.pid), []
    for number in range(PROMPTS):
        prompt = txt2img(seed=number, checkpoint=(CHECKPOINT, SECOND)[number % 2])
        if number % 4 >= 2:
            prompt = workflows.with_lora(prompt, LORA, 0.5 + number / 100)
        outcome = fresh.run(prompt)
        assert outcome.status == "success", outcome.error
        resident.append(process.memory_info().rss)
    status = fresh.status()
    assert (status["eager_calls"], status["compiled_calls"]) == (0, 3 * PROMPTS)
    assert status["binds"] >= PROMPTS - 2
    assert resident[-1] <= 1.03 * resident[SETTLED - 1], [f"{r >> 20} MiB" for r in resident[::5]]
