"""From Linux to Windows: a graph is compiled, signed and pushed here, and pulled, verified and run there."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.fleet.stores import Publisher
from support.models import toy
from support.windows.crossing import FARTHEST, SIZES, compile_for_windows
from support.windows.wine import facts

from onegraph.common.tensor_meta import TensorMeta
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.key import GraphKey, travelling
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.publish import NewEntry
from onegraph.graph_cache.store import Store

NOWHERE = ModelSource(None, "0123456789ab")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled") / "toy"
    compile_for_windows(toy.Toy(), folder)
    return folder


@pytest.fixture(scope="module")
def target() -> dict[str, str]:
    """What Windows' torch asks for."""
    asked: dict[str, str] = facts("pull_and_run.py")["target"]
    assert (asked["platform"], asked["machine"], asked["device"]) == ("windows", "AMD64", "cpu")
    return asked


def published(store: Store, compiled: Path, target: Mapping[str, str], at_least: Mapping[str, str]) -> Entry:
    """The toy's graph in a store of Linux, under the key that Windows asks for."""
    key: GraphKey = dataclasses.replace(toy.request(toy.Toy(), NOWHERE).key, target=dict(target))
    weights = torch.load(compiled.with_suffix(".pt"))["weights"]
    metas = tuple(TensorMeta.of(name, weight) for name, weight in weights.items())
    new = NewEntry("any size", ("graph.aoti",), metas, compile_seconds=1.0, made_by="0.1.0", at_least=at_least)
    with store.staging() as staged:
        shutil.copyfile(compiled / "graph.aoti", staged / "graph.aoti")
        return store.publish(key, staged, new)


@pytest.mark.parametrize("travels", [False, True])
def test_a_graph_that_linux_made_is_pulled_and_run(
    travels: bool, compiled: Path, target: dict[str, str], tmp_path: Path
) -> None:
    """For this very torch, and for any that is new enough."""
    alice = Publisher(Store(tmp_path / "alice"))
    meant = travelling(target) if travels else target
    assert meant is not None
    entry = published(alice.store, compiled, meant, {"torch": "2.9"} if travels else {})
    assert alice.push((tmp_path / "store").as_uri(), entry) == ["pushed"]
    (tmp_path / "public").write_text(alice.public)
    cases = compiled.with_suffix(".pt")
    found = facts("pull_and_run.py", tmp_path / "home", tmp_path / "store", tmp_path / "public", cases)
    assert "refused" not in found, found
    assert (found["here"], found["untrusted"]) == ("Miss", "store_without_publisher")
    assert (found["sound"], found["damaged"]) == (True, "WrongSize")
    assert len(found["far"]) == len(SIZES) and max(found["far"]) < FARTHEST
    assert len(found["name"]) < 60 and found["name"].startswith("any-size-float32-inductor-")


def test_a_graph_for_a_newer_torch_is_refused(compiled: Path, target: dict[str, str], tmp_path: Path) -> None:
    alice = Publisher(Store(tmp_path / "alice"))
    meant = travelling(target)
    assert meant is not None
    entry = published(alice.store, compiled, meant, {"torch": "99.0"})
    assert alice.push((tmp_path / "store").as_uri(), entry) == ["pushed"]
    (tmp_path / "public").write_text(alice.public)
    cases = compiled.with_suffix(".pt")
    found = facts("pull_and_run.py", tmp_path / "home", tmp_path / "store", tmp_path / "public", cases)
    assert "99.0 or newer" in found["refused"]
