"""Regions that share AOTInductor's runtime: one object for all, code that runs the same, and a way back."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.backends import get
from onegraph.backends.base import ServesBlocks
from onegraph.backends.inductor import settings, toolchain
from onegraph.backends.inductor.toolchain import Toolchain
from onegraph.compiler import export


def compile_toy(folder: Path) -> None:
    """Compile the toy. The graph is right, or this fails."""
    folder.mkdir()
    backend, module, inputs = get("inductor"), toy.Toy(3), toy.inputs()
    with backend.capture_settings(), torch.no_grad():
        exported = export.capture(toy.Call(module), toy.shapes(), {"batch": 2, "height": 8}, toy.CPU)
        named = dict(toy.Call(module).named_parameters())
        backend.compile(exported, inputs, folder)
        runner = backend.load(folder, toy.CPU)
        runner.bind({name: named[name] for name in runner.constant_names()})
        torch.testing.assert_close(runner(*inputs), module(*inputs))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.full
def test_the_runtime_is_compiled_once_for_all(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second compile finds the first one's sources where Inductor keeps them."""
    compile_toy(tmp_path / "a")
    (runtime,) = cache.rglob("runtime.o")
    made = runtime.stat().st_mtime_ns
    compile_toy(tmp_path / "b")
    assert [path.stat().st_mtime_ns for path in cache.rglob("runtime.o")] == [made]
    assert not [record for record in caplog.records if "runtime of" in record.message]
    assert not [*cache.rglob("*.alone.cpp")]


@pytest.mark.full
def test_regions_do_without_a_shared_runtime(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(toolchain, "_DECLARED", "\n#error another torch\n")
    compile_toy(tmp_path / "a")
    assert [record for record in caplog.records if "a region is compiled with a runtime of its own" in record.message]


@pytest.mark.full
def test_what_regions_share_is_made_beside_and_once(tmp_path: Path) -> None:
    chain = Toolchain(tmp_path)
    child = chain.prepare(settings.options(toy.CPU), toy.CPU)
    assert child
    assert os.waitpid(child, 0) == (child, 0)
    (runtime,) = tmp_path.glob("runtime-*/runtime.o")
    assert runtime.stat().st_size > 100_000
    assert chain.prepare(settings.options(toy.CPU), toy.CPU) is None


@pytest.mark.full
def test_loaders_of_a_graph_share_their_kernels(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTInductor's code is written as it is known here; loaders that come and go compute with weights of their own."""
    changed: list[bool] = []
    usual = toolchain.with_shared_kernels

    def noted(body: str) -> str:
        changed.append(usual(body) != body)
        return usual(body)

    monkeypatch.setattr(toolchain, "with_shared_kernels", noted)
    compile_toy(tmp_path / "graph")
    assert changed == [True]
    backend = get("inductor")
    assert isinstance(backend, ServesBlocks)
    loader, modules, inputs = backend.loader(tmp_path / "graph", toy.CPU), [toy.Toy(3), toy.Toy(3)], toy.inputs()
    runners = []
    for number, module in enumerate(modules):
        with torch.no_grad():
            module.get_parameter(next(iter(dict(module.named_parameters())))).mul_(number + 1)
        named = dict(toy.Call(module).named_parameters())
        runners.append(loader())
        runners[-1].bind({name: named[name] for name in runners[-1].constant_names()})
    with torch.no_grad():
        wanted = [module(*inputs) for module in modules]
        assert not torch.equal(*wanted)
        for _ in range(2):
            for runner, one in zip(runners, wanted, strict=True):
                torch.testing.assert_close(runner(*inputs), one)
        del runners[0]
        gc.collect()
        torch.testing.assert_close(runners[0](*inputs), wanted[1])


def test_code_that_is_written_in_another_way_stays_as_it_is() -> None:
    known = f"a\n{toolchain._KERNELS}x\n}};\nauto& kernels = {toolchain._OWN};\n"
    assert ".of(this->device_idx_)" in toolchain.with_shared_kernels(known)
    for other in (known * 2, known.replace("public:", "private:"), known.replace("kernels_.get()", "other")):
        assert toolchain.with_shared_kernels(other) == other
