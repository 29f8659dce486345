"""Calls whose tensors are broadcast otherwise than in those that a graph was compiled for have a graph of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.dit_matrix import steering
from support.models import dits
from support.scenes.nodes import assert_close, blocks, compiled, told
from support.scenes.sampling import Addition, Sampling, settings

from onegraph.runtime.counters import Counters
from onegraph.runtime.obtain import registry as registry_module
from onegraph.runtime.obtain.registry import Registry, registry
from onegraph.runtime.policy import ANY_SPEED


def sampled(name: str, model: Any, *added: Addition) -> torch.Tensor:
    sampling = Sampling(name, model, steps=3)
    for add in added:
        add(sampling)
    return sampling.run()


@pytest.mark.full
@pytest.mark.parametrize("name", ["wan 2.2 5B", "ltx 2"])
def test_timesteps_of_each_frame_after_one_for_all(
    name: str, graphs_home: Path, shared_graphs: SharedGraphs, counters: Counters
) -> None:
    shared_graphs.give(graphs_home, None, *dit_graphs(name))
    plain = dits.load(name)
    model = compiled(plain)
    text, kept = (), (steering.first_frame_kept,)
    for number, (added, compiles) in enumerate(((text, 0), (kept, 1), (text, 1), (kept, 1), (text, 1))):
        found, wanted = sampled(name, model, *added), sampled(name, plain, *added)
        assert_close(found, wanted)
        assert counters.compiles == compiles, told()
        if number != 1:
            assert blocks()["eager_codes"] == {}
    # Another size, and another process, whose first call has timesteps of each frame.
    others = (settings(height=24, width=12, frames=5), *kept)
    assert_close(sampled(name, model, *others), sampled(name, plain, *others))
    store = registry().store
    registry().close()
    with registry_module.using(Registry(store, policy=ANY_SPEED)) as again:
        assert again is not None
        model = compiled(dits.load(name))
        for added in (others, text):
            assert_close(sampled(name, model, *added), sampled(name, plain, *added))
            assert blocks()["eager_codes"] == {}
        assert (again.counters.compiles, again.counters.restores, again.counters.eager_calls) == (0, 2, 0)


def test_a_token_has_the_timestep_of_its_frame() -> None:
    """As the host repeats them, also where frames have no whole number of tokens each."""
    import comfy.ldm.wan.model as wan

    from onegraph.host.capture import rewrites

    repeated = wan.repeat_e
    with rewrites.settings().rewrites():
        gathered = wan.repeat_e
        assert gathered is not repeated
        for frames, tokens in ((1, 7), (3, 3), (3, 12), (4, 13), (5, 11), (7, 5), (2, 101)):
            e, x = torch.randn(2, frames, 8), torch.zeros(2, tokens, 8)
            assert torch.equal(gathered(e, x), repeated(e, x)), (frames, tokens)
    assert wan.repeat_e is repeated
