"""Which functions of others turn block graphs off: those that blocks run, and no others of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.models import dits
from support.scenes.judge import LEAST_EFFECT, distance
from support.scenes.nodes import assert_close, restored
from support.scenes.sampling import Sampling

from onegraph.runtime.counters import Counters


@pytest.fixture
def flux(graphs_home: Any, shared_graphs: SharedGraphs) -> Any:
    shared_graphs.give(graphs_home, None, *dit_graphs("flux"))
    return dits.load("flux")


def sampled(model: Any) -> torch.Tensor:
    return Sampling("flux", model).run()


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("comfy.model_management", "", "get_torch_device"),
        ("comfy.ldm.flux.model", "Flux", "process_img"),
        ("comfy.ldm.flux.model", "Flux", "forward_orig"),
        ("comfy.ldm.flux.model", "", "timestep_embedding"),
    ],
)
def test_a_function_outside_of_blocks_is_of_no_graph(
    module: str, owner: str, name: str, flux: Any, counters: Counters
) -> None:
    import importlib

    space: Any = importlib.import_module(module)
    space = getattr(space, owner) if owner else space
    with patch.object(space, name, wrapped(getattr(space, name))):
        found, wanted = sampled(restored(flux)), sampled(flux)
    assert_close(found, wanted)
    assert counters.eager_calls == counters.compiles == 0
    assert counters.compiled_calls


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("comfy_kitchen.backends.eager", "apply_rope"),
        ("comfy.ldm.flux.math", "apply_rope"),
        ("comfy.ldm.flux.layers", "apply_mod"),
    ],
)
def test_a_function_that_blocks_call_is_seen(module: str, name: str, flux: Any, counters: Counters) -> None:
    """Also one that a library looks up by its name when it is called."""
    import importlib

    space: Any = importlib.import_module(module)
    real, plain = getattr(space, name), sampled(flux)

    def doubled(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        return tuple(2 * one for one in found) if isinstance(found, tuple) else 2 * found

    with patch.object(space, name, doubled):
        found, wanted = sampled(restored(flux)), sampled(flux)
    assert distance(wanted, plain) > LEAST_EFFECT
    assert_close(found, wanted)
    assert "function_replaced" in {reason.code for reason in counters.reasons}
