"""Images from the server: the workflow that makes them, and when two are the same."""

from __future__ import annotations

from typing import Any

from headless import server, workflows

from .conftest import CHECKPOINT

SIDE = 512
# Of 255. Rounding in float16 and bfloat16 moves a pixel by up to 5, 0.5 in the mean; another seed 60 in the mean.
LARGEST, MEAN = 16, 1.0


def txt2img(
    *, seed: int = 1, side: int = SIDE, steps: int = 4, batch: int = 1, checkpoint: str = CHECKPOINT, **node: Any
) -> workflows.Prompt:
    """tests/workflows/txt2img with both nodes (`2` and `vae`); `node` are inputs of Compile Model (OneGraph)."""
    prompt = workflows.with_checkpoints(workflows.load("txt2img"), checkpoint)
    prompt = workflows.with_steps(prompt, steps, steps)
    prompt = workflows.with_inputs(prompt, "EmptyLatentImage", width=side, height=side, batch_size=batch)
    prompt = workflows.with_inputs(prompt, "KSampler", seed=seed)
    prompt = workflows.with_inputs(prompt, "OneGraphCompileModel", **node)
    return workflows.with_compiled_vae(prompt, dynamic_resolution="any size")


def differences(a: server.Outcome, b: server.Outcome) -> list[tuple[int, float]]:
    """(largest, mean) difference of each pair of images, of 255."""
    for outcome in (a, b):
        assert outcome.status == "success", outcome.error
    pairs = [abs(x.astype(int) - y.astype(int)) for x, y in zip(a.images, b.images, strict=True)]
    assert pairs
    return [(int(pair.max()), float(pair.mean())) for pair in pairs]


def assert_same(a: server.Outcome, b: server.Outcome, mean_only: float | None = None) -> None:
    """Within rounding; `mean_only` is another bound, for workflows that amplify it."""
    found = differences(a, b)
    if mean_only is not None:
        assert all(mean <= mean_only for _, mean in found), (found, a.texts, b.texts)
        return
    assert all(largest <= LARGEST and mean <= MEAN for largest, mean in found), (found, a.texts, b.texts)


def assert_other(a: server.Outcome, b: server.Outcome) -> None:
    found = differences(a, b)
    assert all(mean > 5 * MEAN for _, mean in found), found
