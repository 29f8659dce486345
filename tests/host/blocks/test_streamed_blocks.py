"""Models that do not fit: the host's own functions bring the weights of one block after the other, to stand-ins of
pages, and blocks run compiled all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.comfyui import pages
from support.models import dits

from onegraph.host import model_hook, status
from onegraph.runtime.registry import registry

NODE = "7"


@pytest.fixture(autouse=True)
def inference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with torch.inference_mode(), pages.simulated(monkeypatch):
        yield


def compiled(model: Any) -> Any:
    return model_hook.compile_model(model, model_hook.Options(backend="inductor"), NODE)[0]


def blocks() -> dict[str, Any]:
    found: dict[str, Any] = status.last_runs[NODE].to_json()["blocks"]
    return found


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def left_alone(model: Any, vbar: pages.FakeVbar) -> bool:
    """Whether nothing is pinned, fetched or held."""
    fetched = [layer for layer in model.model.modules() if "_prefetch" in vars(layer)]
    return not any(vbar.pins) and not fetched


@pytest.fixture
def flux() -> Any:
    """A small FLUX.1 whose graphs exist."""
    model = dits.load("flux")
    dits.sample(compiled(model), "flux")
    return model


def check(model: Any, vbar: pages.FakeVbar, wanted: torch.Tensor, name: str = "flux", within: float = 1e-6) -> int:
    """A sampling of compiled blocks alone is right; how many of them were streamed."""
    found = dits.sample(compiled(model), name)
    report = blocks()
    assert distance(found, wanted) < within, status.last_runs[NODE].text()
    assert report["eager_codes"] == {} and report["compiled"] == report["of"], status.last_runs[NODE].text()
    assert registry().counters.compiles == 0 or report["calls"]
    assert left_alone(model, vbar)
    streamed: int = report["streamed"]
    assert (report["streamed_bytes"] > 0) == (streamed > 0)
    return streamed


@pytest.mark.parametrize(("room", "least", "most"), [(0.6, 1, 4), (0.25, 3, 5), (0.0, 5, 5)])
def test_a_model_with_room_for_a_part_of_it(room: float, least: int, most: int, flux: Any) -> None:
    wanted = dits.sample(flux, "flux")
    vbar = pages.page(flux, room)
    for _ in range(2):
        streamed = check(flux, vbar, wanted)
        assert least <= streamed <= most
        vbar.evict()
    text = status.last_runs[NODE].text()
    assert (f"5 of 5 blocks compiled, {5 - streamed} resident, {streamed} streamed" in text) == (streamed > 0), text
