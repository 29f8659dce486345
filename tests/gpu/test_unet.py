"""A compiled UNet on the GPU, call by call against eager, also when the same call comes again and again.

A graph that was called a few times with the same shapes may replay its kernels as a CUDA graph. These tests cover every
way in which a captured call could be stale or overwritten: other weights, other addresses, results still in use.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host
from support.comfyui import controlnet

from .conftest import BOUNDS, CHECKPOINT, DEEP, DTYPES, LORA, Compiles, compiled, load, node_text

SIDE = 256
MANY = 10  # calls of one size: more than any graph waits for before it replays


class Calls:
    """Every UNet call of the runs of one model: what was served, and what eager gives with the weights of that moment.

    The results are compared at the end only, for a later call must not write into an earlier one's result.
    """

    def __init__(self, model: Any) -> None:
        from comfy.patcher_extension import WrappersMP

        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.dtype = model.model.get_dtype_inference()
        self.model = model.clone()
        # No cycle: the host reads its list of models while it frees some, and fails when a collector takes one out.
        self.model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "test", partial(Calls._both, weakref.proxy(self)))

    def _both(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        served = executor(*args, **kwargs)
        self.pairs.append((served, executor.class_obj._forward(*args, **kwargs).clone()))
        return served

    def check(self) -> list[torch.Tensor]:
        """All calls equal eager within their dtype's bound; eager's results. Forgets them."""
        from onegraph.runtime.graphs.faithfulness import relative_l2

        pairs, self.pairs = self.pairs, []
        assert pairs
        errors = [relative_l2(served, eager) for served, eager in pairs]
        assert max(errors) < BOUNDS.get(self.dtype, 1e-4), [f"{error:.1e}" for error in errors]
        return [eager for _, eager in pairs]


def run(model: Any, **settings: Any) -> None:
    host.sample(model, **{"height": SIDE, "width": SIDE, **settings})


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest, unet_graph: Callable[[torch.dtype], None]) -> torch.dtype:
    chosen: torch.dtype = request.param
    unet_graph(chosen)
    return chosen


@pytest.fixture
def calls(base: Path, dtype: torch.dtype, engine: Any) -> Calls:
    """A freshly loaded model whose calls are compared."""
    return Calls(load(base, dtype))


def differ(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    """Else a stale result would not be noticed."""
    from onegraph.runtime.graphs.faithfulness import relative_l2

    assert min(relative_l2(x, y) for x, y in zip(a, b, strict=True)) > 0.1


def test_one_graph_serves_sizes_prompts_and_batches(calls: Calls, engine: Any) -> None:
    fast = compiled(calls.model)
    settings: list[dict[str, Any]] = [
        {},
        {"height": 512, "width": 768},
        {"height": 208, "width": 144},
        {"tokens": 154},
        {"tokens": 231, "cfg": 1.0},
        {"cfg": 1.0},
        {"batch": 2},
        {"batch": 3, "cfg": 1.0},
        {"batch": 5},  # ten at once: more than the graph takes, so split
    ]
    for setting in settings:
        run(fast, **setting)
        calls.check()
        assert node_text().startswith(("compiled, any size", "restored in")), (setting, node_text())
    assert (engine.counters.compiles, engine.counters.restores, engine.counters.eager_calls) == (0, 1, 0)


def test_another_graph_serves_every_multiple_of_8(base: Path, compiles: Compiles, engine: Any) -> None:
    """It is restored when the first such size comes, beside the one for the usual sizes."""
    compiles.wait("every size", "torch.float16")
    calls = Calls(load(base, torch.float16))
    fast = compiled(calls.model)
    for settings in ({"height": 200, "width": 136}, {}, {"height": 264, "steps": MANY}, {"height": 200, "tokens": 154}):
        run(fast, **settings)
        calls.check()
    counters = engine.counters
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 2, 0), node_text()


def test_a_second_process_compiles_nothing(base: Path, compiles: Compiles, environment: dict[str, str]) -> None:
    script = Path(__file__).parents[1] / "support" / "processes" / "second_process.py"

    def run_one(dtype: torch.dtype) -> dict[str, Any]:
        name = str(dtype).removeprefix("torch.")
        done = subprocess.run(
            [sys.executable, str(script), str(base / "models/checkpoints" / CHECKPOINT), name],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            check=True,
            timeout=300,
        )
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    compiles.wait(*map(str, DTYPES))
    with ThreadPoolExecutor() as pool:
        for dtype, found in zip(DTYPES, pool.map(run_one, DTYPES), strict=True):
            counted = [found[name] for name in ("compiles", "restores", "compiled_calls", "eager_calls")]
            assert counted == [0, 1, 2, 0], found
            assert found["rel_l2"] < 3 * BOUNDS[dtype]  # of two steps, guided


def test_the_same_size_again_and_again(calls: Calls, engine: Any) -> None:
    from onegraph.backends import cuda_graphs

    fast = compiled(calls.model)
    seen, replayed = [], cuda_graphs.counters.replayed_calls
    for seed in (1, 2):
        run(fast, seed=seed, steps=MANY)
        seen.append(calls.check())
        assert len(seen[-1]) == MANY
    differ(seen[0][:1], seen[1][:1])
    assert engine.counters.eager_calls == 0
    # Else the tests of this file would not cover it: a model this small is bound by launches, so that it always pays.
    assert cuda_graphs.counters.replayed_calls > replayed


def test_a_deep_model_is_compiled_in_regions(base: Path, compiles: Compiles, engine: Any) -> None:
    compiles.wait("deep")
    path = base / "models/checkpoints" / DEEP
    calls = Calls(host.load(path))
    fast = compiled(calls.model)
    for settings in ({"steps": MANY}, {"height": 512, "width": 384}, {"batch": 2, "tokens": 154}, {"seed": 2}):
        run(fast, **settings)
        calls.check()
    counters = engine.counters
    assert (counters.compiles, counters.restores, counters.eager_calls) == (0, 1, 0), node_text()
    (manifest,) = (path.parent / "deep_sdxl.graphs").glob("*/unet/*/manifest.json")
    assert len(json.loads(manifest.read_text())["files"]) > 2


def test_halves_of_a_batch_do_not_overwrite_each_other(calls: Calls) -> None:
    fast = compiled(calls.model)
    run(fast, batch=8, steps=MANY)  # sixteen at once: two calls of eight for each step
    whole = calls.check()[0]
    differ([whole[:8]], [whole[8:]])


def test_another_size_in_between(calls: Calls, engine: Any) -> None:
    fast = compiled(calls.model)
    for height, steps in ((256, MANY), (384, 3), (256, MANY), (384, MANY), (256, 2)):
        run(fast, height=height, steps=steps, seed=steps + height)
        calls.check()
    assert engine.counters.eager_calls == 0


def test_weights_changed_in_place(calls: Calls, engine: Any) -> None:
    fast = compiled(calls.model)
    unet = calls.model.model.diffusion_model
    run(fast, steps=MANY)
    before = calls.check()
    for name in ("out.2.weight", "out.2.bias", "input_blocks.0.0.weight", "time_embed.0.weight"):
        unet.get_parameter(name).mul_(1.5)
    run(fast, steps=MANY)
    differ(before[:1], calls.check()[:1])

    def between_calls(executor: Any, *args: Any, **kwargs: Any) -> Any:
        unet.get_parameter("out.2.weight").mul_(1.1)
        return executor(*args, **kwargs)

    from comfy.patcher_extension import WrappersMP

    changing = calls.model.clone()
    changing.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "change", between_calls)
    # The change comes first of all, so that what is served and eager see the same weights.
    wrappers = changing.wrappers[WrappersMP.DIFFUSION_MODEL]
    wrappers["test"] = wrappers.pop("test")
    run(compiled(changing), steps=4)
    calls.check()
    assert engine.counters.eager_calls == 0


def test_a_lora_on_weaker_off_and_on_again(calls: Calls, engine: Any, base: Path) -> None:
    """ComfyUI puts patched weights into the model as new Parameters, elsewhere in memory."""
    seen = []
    for strength in (0.0, 1.0, 0.5, 0.0, 1.0):
        model = host.with_lora(calls.model, base / "models/loras" / LORA, strength) if strength else calls.model
        run(compiled(model), steps=MANY)
        seen.append(calls.check()[:1])
    differ(seen[0], seen[1])
    differ(seen[1], seen[2])
    differ(seen[2], seen[3])
    assert torch.allclose(seen[0][0], seen[3][0], atol=1e-3)
    assert (engine.counters.compiles, engine.counters.eager_calls) == (0, 0)


def test_each_graph_of_a_run_has_the_live_weights(
    base: Path, unet_graph: Callable[[torch.dtype], None], engine: Any
) -> None:
    """A ControlNet for some of the steps makes two graphs of one run; both were captured before a LoRA came."""
    unet_graph(torch.float16)
    calls = Calls(load(base))
    net = controlnet.load(controlnet.write_controlnet("tiny_sdxl", base / "models/controlnet/tiny_sdxl.safetensors"))
    conditioning = controlnet.steered(net, percent=(0.0, 0.5))
    seen = []
    for strength in (0.0, 1.0, 0.5, 0.0):
        model = host.with_lora(calls.model, base / "models/loras" / LORA, strength) if strength else calls.model
        controlnet.sample(compiled(model), conditioning, steps=2 * MANY, height=SIDE, width=SIDE)
        seen.append(calls.check())
    for before, after in itertools.pairwise(seen):
        differ(before[:1], after[:1])
        differ(before[-1:], after[-1:])
    assert (engine.counters.compiles, engine.counters.eager_calls) == (1, 0)  # the one with residuals


def test_weights_that_moved_are_found_again(calls: Calls, engine: Any) -> None:
    import comfy.model_management

    fast = compiled(calls.model)
    run(fast, steps=MANY)
    for _ in range(2):
        comfy.model_management.unload_all_models()
        held = torch.ones(2**24, device=comfy.model_management.get_torch_device())  # where the weights were, perhaps
        run(fast, steps=3)
        calls.check()
        del held
    for parameter in calls.model.model.diffusion_model.parameters():
        parameter.data = parameter.data.clone()
    run(fast, steps=3)
    calls.check()
    assert engine.counters.eager_calls == 0
