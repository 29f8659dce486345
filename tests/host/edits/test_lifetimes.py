"""What a graph reads stays alive while it is read, and is let go of at the end of the run."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.edits import subjects
from support.edits.judge import close, compiled_fully
from support.edits.subjects import Subject, nothing
from support.scenes.places import UNKNOWABLE, GuidedSampling, library_function
from torch.multiprocessing.reductions import StorageWeakRef

from onegraph.runtime.graphs.loaded_graph import LoadedGraph

COMPONENTS = ("unet", "net", "decoder")
ROLES = ("layer", "deep", "square")


def storages(subject: Subject) -> dict[str, StorageWeakRef]:
    return {name: StorageWeakRef(one.untyped_storage()) for name, one in subject.module.named_parameters()}


def alive(found: dict[str, StorageWeakRef]) -> list[str]:
    gc.collect()
    return [name for name, one in found.items() if not one.expired()]


def moved(subject: Subject) -> dict[str, StorageWeakRef]:
    """The storages of the weights that `ROLES` name, each of which is another one now, with the same values."""
    found = {}
    for role in ROLES:
        layer: Any = subject.module.get_submodule(subject.roles[role])
        found[role] = StorageWeakRef(layer.weight.untyped_storage())
        layer.weight.data = layer.weight.data.clone()
    return found


def replaced(subject: Subject) -> dict[str, StorageWeakRef]:
    """The same where each weight is another Parameter."""
    found = {}
    for role in ROLES:
        layer: Any = subject.module.get_submodule(subject.roles[role])
        found[role] = StorageWeakRef(layer.weight.untyped_storage())
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
    return found


def exchanged(subject: Subject) -> dict[str, StorageWeakRef]:
    """The same where each layer is another one."""
    found = {}
    for role in ROLES:
        path, _, name = subject.roles[role].rpartition(".")
        parent: Any = subject.module.get_submodule(path)
        layer = getattr(parent, name)
        found[role] = StorageWeakRef(layer.weight.untyped_storage())
        setattr(parent, name, copy.deepcopy(layer))
        del layer
    return found


CHANGES = [moved, replaced, exchanged]


def cases(components: Sequence[str]) -> list[Any]:
    """Each component with each change, of which the default run has one for each component, in turns."""
    return [
        pytest.param(component, change, marks=[pytest.mark.full] * bool((number + place) % len(CHANGES)))
        for number, component in enumerate(components)
        for place, change in enumerate(CHANGES)
    ]


@pytest.mark.parametrize(("component", "change"), cases(COMPONENTS))
def test_weights_that_go_during_a_call_stay_until_it_returns(
    subject: Subject,
    change: Callable[[Subject], dict[str, StorageWeakRef]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread changes the model when everything was checked, before the graph reads a weight."""
    fast = subject.compiled()
    plain = compiled_fully(subject, fast, "before")
    old: list[dict[str, StorageWeakRef]] = []
    seen: list[list[str]] = []
    run: Any = LoadedGraph._run

    def change_and_run(self: LoadedGraph, runner: Any, inputs: Any) -> Any:
        if not old:
            thread = threading.Thread(target=lambda: old.append(change(subject)))
            thread.start()
            thread.join()
            seen.append(alive(old[0]))
        return run(self, runner, inputs)

    monkeypatch.setattr(LoadedGraph, "_run", change_and_run)
    result = fast(None, nothing)
    assert close(result, plain)
    assert seen == [[*ROLES]]
    assert alive(old[0]) == []


@pytest.mark.parametrize("component", ["unet", "net"])
def test_weights_that_go_in_mid_run_stay_until_its_end(subject: Subject) -> None:
    """Where nothing tells of a change, a graph may read what it was bound to, which then must be a weight."""
    fast = subject.compiled()
    plain = compiled_fully(subject, fast, "before")
    old: list[dict[str, StorageWeakRef]] = []
    steps: list[list[str]] = []

    def place(sampling: GuidedSampling, act: Callable[[], None]) -> None:
        UNKNOWABLE["library's callback"](sampling, act)
        first = sampling.callback

        def second() -> None:
            steps.append(alive(old[0]))

        later = library_function(second, "def function(*args):\n    return first(*args), inner(*args)\n")
        later.__globals__["first"] = first
        sampling.callback = later

    result = fast(place, lambda: old.append(moved(subject)))
    assert close(result, plain)
    assert len(steps) == 1
    assert alive(old[0]) == []


@pytest.mark.parametrize(("component", "change"), cases((*COMPONENTS, "encoder")))
def test_weights_that_go_between_runs_are_freed(
    subject: Subject, change: Callable[[Subject], dict[str, StorageWeakRef]]
) -> None:
    """At once; an exchanged module, which is watched for whoever changes it, at the next run."""
    fast = subject.compiled()
    compiled_fully(subject, fast, "before")
    old = change(subject)
    assert alive(old) == [] or change is exchanged
    compiled_fully(subject, fast, "after")
    assert alive(old) == []


def loaded(component: str, checkpoint: Callable[..., Path], net_file: Path) -> Subject:
    if component == "unet":
        return subjects.unet(checkpoint())
    if component == "net":
        return subjects.net(checkpoint(), net_file)
    return subjects.vae(checkpoint(vae="both"), component)


@pytest.mark.parametrize("component", COMPONENTS)
def test_weights_of_a_model_that_goes_are_freed(
    component: str, checkpoint: Callable[..., Path], net_file: Path, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(component)  # its graphs are in the store
    import comfy.model_management

    subject = loaded(component, checkpoint, net_file)
    fast = subject.compiled()
    compiled_fully(subject, fast, "before")
    old = storages(subject)
    assert len(alive(old)) == len(old)
    del subject, fast
    comfy.model_management.unload_all_models()
    comfy.model_management.cleanup_models_gc()
    assert alive(old) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_weights_that_the_host_unloads_are_freed(subject: Subject) -> None:
    """To unload is to put the weights elsewhere: what the graph read before is freed while the model lives on."""
    import comfy.model_management

    fast = subject.compiled()
    plain = compiled_fully(subject, fast, "before")
    comfy.model_management.unload_all_models()
    assert alive(moved(subject)) == []
    assert close(compiled_fully(subject, fast, "after"), plain)
