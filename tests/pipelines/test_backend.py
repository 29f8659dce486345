"""One more backend is one file and an entry point: a toy one compiles, stores, restores and runs a toy module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.models.toy_family import WIDTH, Net

from onegraph import backends
from onegraph.common.errors import BackendError, PipelineError
from onegraph.graph_cache.integrity import Sound
from onegraph.graph_cache.store import Store
from onegraph.pipelines import compile_module
from onegraph.runtime.obtain.registry import Registry, using
from onegraph.runtime.policy import ANY_SPEED

Offer = Callable[[str, str], None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    """Install a package that offers a backend by an entry point, for one test."""

    def install(name: str, value: str) -> None:
        info = tmp_path / f"site-{name}" / f"{name}_backend-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-backend\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[onegraph.backends]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(info.parent)

    yield install
    backends._offered.cache_clear()


def check(net: torch.nn.Module) -> None:
    """Calls of several sizes compute what the plain module does."""
    plain = Net()
    with torch.no_grad():
        for batch, height, width, tokens in ((2, 16, 16, 77), (1, 8, 24, 12), (6, 16, 16, 2)):
            given = torch.randn(batch, 4, height, width), 999 * torch.rand(batch), torch.randn(batch, tokens, WIDTH)
            torch.testing.assert_close(net(*given), plain(*given), rtol=1e-4, atol=1e-4)


def test_a_toy_backend_compiles_and_a_new_process_restores(fresh: Registry, offer: Offer) -> None:
    offer("toy", "support.models.toy_backend:ToyBackend")
    check(compile_module(Net(), backend="toy"))
    assert (fresh.counters.compiles, fresh.counters.eager_calls) == (1, 0), str(fresh.counters)
    assert fresh.counters.compiled_calls == 4  # six at a time are two calls
    (entry,) = fresh.store.entries()
    assert entry.manifest.key["backend"] == "toy" and "program.pt2" in entry.manifest.files
    assert isinstance(fresh.store.check(entry.folder), Sound)
    with using(Registry(Store(fresh.store.home), policy=ANY_SPEED)) as process:
        assert process is not None
        check(compile_module(Net(), backend="toy"))
        assert (process.counters.compiles, process.counters.restores) == (0, 1), str(process.counters)
        assert (process.counters.compiled_calls, process.counters.eager_calls) == (4, 0)


def test_auto_tries_no_backend_of_another_package(offer: Offer) -> None:
    offer("toy", "support.models.toy_backend:ToyBackend")
    assert backends.get("toy") is backends.get("toy")
    assert backends.known() == ("inductor", "oneflow")


def test_a_name_that_nobody_offers_is_refused(offer: Offer) -> None:
    offer("toy", "support.models.toy_backend:ToyBackend")
    with pytest.raises(KeyError):
        backends.get("toys")
    with pytest.raises(PipelineError, match=r"^backend is 'toys'; choose one of auto, inductor, oneflow\.$"):
        compile_module(Net(), backend="toys")
    with pytest.raises(PipelineError, match="choose one of auto"):
        compile_module(Net(), backend=["toy"])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["no_such_module:Backend", "support.models.toy_backend:Missing", "json:dumps"])
def test_a_broken_package_leaves_other_backends_alone(offer: Offer, value: str) -> None:
    offer("broken", value)
    offer("toy", "support.models.toy_backend:ToyBackend")
    with pytest.raises(BackendError, match="The backend 'broken' cannot be loaded"):
        backends.get("broken")
    with pytest.raises(PipelineError, match="or choose another backend"):
        compile_module(Net(), backend="broken")
    for name in ("inductor", "toy"):
        assert backends.get(name).name == name
