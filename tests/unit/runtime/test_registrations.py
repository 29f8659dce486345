"""Whoever gives a module a parameter, a buffer or a child is noticed, whatever they call."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from support.models import toy

from onegraph.runtime import registrations
from onegraph.runtime.run import Run


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(8, 8), requires_grad=False)


def in_a_thread(module: toy.Toy) -> None:
    thread = threading.Thread(target=lambda: setattr(module.mix, "weight", parameter()))
    thread.start()
    thread.join()


REGISTERED: dict[str, Callable[[toy.Toy], object]] = {
    "a parameter set": lambda m: setattr(m.mix, "weight", parameter()),
    "register_parameter": lambda m: m.mix.register_parameter("weight", parameter()),
    "load_state_dict(assign=True)": lambda m: m.load_state_dict(m.state_dict(), assign=True),
    "a child set": lambda m: setattr(m, "mix", torch.nn.Linear(8, 8)),
    "add_module": lambda m: m.add_module("mix", m.mix),
    "an item of a list": lambda m: torch.nn.ModuleList([m.mix]).__setitem__(0, m.out),
    "a buffer": lambda m: m.register_buffer("scale", torch.ones(1)),
    "in another thread": in_a_thread,
}


@pytest.mark.parametrize("what", REGISTERED)
def test_a_registration_changes_the_number(what: str) -> None:
    module = toy.Toy()
    before = registrations.stamp()
    assert registrations.stamp() == before
    REGISTERED[what](module)
    assert registrations.stamp() != before


def test_values_change_nothing() -> None:
    module = toy.Toy()
    before = registrations.stamp()
    module.mix.weight.mul_(2)
    module(*toy.inputs())
    assert registrations.stamp() == before


def test_after_a_registration_a_call_is_checked_in_full() -> None:
    module, run = toy.Toy(), Run(served=True)
    for _ in range(2):
        run.look(alone=True)
    assert run.check_slice is not None
    full_checks = run.full_checks
    module.mix = torch.nn.Linear(8, 8)
    run.look(alone=True)
    assert run.check_slice is None and run.full_checks == full_checks + 1
    run.look(alone=True)
    assert run.check_slice is not None
    run.look(alone=False)
    assert run.check_slice is None
