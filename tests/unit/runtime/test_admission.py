"""Memory before a compile: what it would take, and what the host planned."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import toy

from onegraph.common import memory
from onegraph.common.errors import CompileError
from onegraph.common.refused import Refused
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime import admission
from onegraph.runtime.admission import CONTEXT_BYTES, Fits, Limits, MemoryNeed, TooLittle, admit
from onegraph.runtime.obtain.registry import Registry
from onegraph.signature.declared import Dim, ShapeRange, TensorSpec

GIB = 1 << 30
NO_ROOM = Limits(poll_seconds=0.02, applies=lambda device: True, free=lambda device: 0)


def test_a_compile_fits_with_as_many_workers_as_do() -> None:
    need = MemoryNeed(calls=GIB, planned=2 * GIB, workers=3)
    alone = 3 * GIB + CONTEXT_BYTES
    assert admit(need, alone) == Fits(0)
    assert admit(need, alone + CONTEXT_BYTES) == Fits(1)
    assert admit(need, alone + 2 * CONTEXT_BYTES + GIB) == Fits(2)
    assert admit(need, 1000 * GIB) == Fits(3)
    found = admit(need, alone - 1)
    assert isinstance(found, TooLittle) and found.missing == 1


def test_a_compile_that_does_not_fit_says_the_figures() -> None:
    refused, alone = admit(MemoryNeed(GIB, 2 * GIB, 3), 3 * GIB), admit(MemoryNeed(GIB, 0, 0), -1)
    assert isinstance(refused, TooLittle) and isinstance(alone, TooLittle)
    assert (refused.missing, alone.missing) == (int(1.1 * GIB), int(2.1 * GIB) + 1)
    assert (
        refused.refused.text
        == "compiling needs 2.1 GiB of GPU memory beside the 2.0 GiB of this run, and 3.0 GiB are free"
    )
    assert alone.refused.text == "compiling needs 2.1 GiB of GPU memory, and 0 MiB are free"


def test_the_estimate_uses_sizes_and_the_widest_layer() -> None:
    """SDXL at 1024x1024, batch 2, float16: ComfyUI's own estimate is 0.5 GiB, twice of that is to be free."""
    dims = (Dim("batch", 1, 8), Dim("height", 8, 256), Dim("width", 8, 256))
    shapes = ShapeRange(dims, (TensorSpec("x", ("batch", 4, "height", "width"), "float16"),))
    module = torch.nn.Linear(1280, 10240, device="meta")
    found = admission.calls_bytes(shapes, {"batch": 2, "height": 128, "width": 128}, module)
    assert found == 2 * 2 * 128 * 128 * 10240 * 2
    assert admission.calls_bytes(shapes, {"height": 512}, module) == 2 * 256 * 8 * 10240 * 2  # within the range


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "device memory"),
        (RuntimeError("CUDA error: out of memory"), "device memory"),
        (MemoryError(), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
        (RuntimeError("g++: fatal error: Killed signal terminated program cc1plus"), "memory"),
        (CompileError("what was wrong before", cause="memory"), "memory"),
        (RuntimeError("something else"), ""),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: Exception, cause: str) -> None:
    assert memory.ran_out(error) == cause
    outer = CompileError("AOTInductor could not compile the model.")
    outer.__cause__ = error
    assert memory.ran_out(outer) == cause


def test_nothing_waits_for_a_queue_of_unknown_state(tmp_path: Path, source: ModelSource) -> None:
    engine = Registry(Store(tmp_path), NO_ROOM)
    refused = engine.obtain(toy.request(toy.Toy(), source), "wait", lambda progress: None)
    assert isinstance(refused, Refused) and refused.text.endswith("0 MiB are free")
    assert engine.compiles.deferred() == 0


def test_what_waits_keeps_no_model_alive(tmp_path: Path, source: ModelSource) -> None:
    engine, module = Registry(Store(tmp_path), NO_ROOM), toy.Toy()
    died = weakref.ref(module)
    request = replace(toy.request(module, source), idle=lambda: False)
    assert isinstance(engine.obtain(request, "wait", lambda progress: None), Refused)
    del module, request
    assert engine.compiles.deferred() == 1
    assert died() is None


@pytest.mark.parametrize(
    ("chosen", "seconds"), [("", 1800), ("90", 90), ("0", 0), ("1.5", 1.5), ("soon", 1800), ("-3", 1800), ("nan", 1800)]
)
def test_the_limit_is_a_setting(chosen: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEGRAPH_COMPILE_TIMEOUT", chosen)
    assert Limits().seconds == seconds


def test_the_host_is_asked_for_what_is_missing(tmp_path: Path, source: ModelSource) -> None:
    asked: list[int] = []
    engine = Registry(Store(tmp_path), replace(NO_ROOM, free=lambda device: GIB))
    request = replace(toy.request(toy.Toy(), source), planned_bytes=GIB, idle=lambda: False, make_room=asked.append)
    refused = engine.obtain(request, "wait", lambda progress: None)  # it gave up nothing
    assert isinstance(refused, Refused) and refused.reason.code == "put_off"
    assert asked == [CONTEXT_BYTES + request.activation_bytes()]
    engine.compiles._deferred.take(request.slot)
