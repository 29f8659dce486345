"""What is turned on around a call, of which nothing but a few numbers is looked at as long as it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onegraph.common import reasons
from onegraph.runtime.guards import ambient_modes

Around = Callable[[], contextlib.AbstractContextManager[Any]]
ONE = torch.ones(2)


class Mode(torch.overrides.TorchFunctionMode):
    """Another pack's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def differentiating() -> Any:
    with torch.enable_grad():
        yield


@contextlib.contextmanager
def making(dtype: torch.dtype) -> Any:
    """Tensors of another dtype where nobody names one."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: dict[str, tuple[Around, reasons.Reason | None]] = {
    "nothing": (torch.inference_mode, None),
    "no gradients": (torch.no_grad, None),
    "autocast": (lambda: torch.autocast("cpu"), reasons.Autocast()),
    "autocast of another device": (lambda: torch.autocast("xpu", enabled=True), None),
    "a mode": (Mode, reasons.DispatchMode()),
    "default dtype": (lambda: making(torch.bfloat16), reasons.DefaultDtype("bfloat16")),
    "usual default dtype": (lambda: making(torch.float32), None),
    "gradients": (differentiating, reasons.Gradients()),
}


@pytest.mark.parametrize("what", AROUND)
@pytest.mark.parametrize("tells", [True, False])
def test_what_surrounds_a_call(what: str, tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tells:  # another torch, which has no one answer for all devices
        monkeypatch.setattr(ambient_modes, "is_any_autocast_enabled", lambda: True)
    module = torch.nn.Linear(2, 2).requires_grad_(what == "gradients")
    around, wanted = AROUND[what]
    with contextlib.nullcontext() if what == "gradients" else torch.no_grad(), around():
        assert ambient_modes.refusal(module, [None, "text", ONE]) == wanted
        assert ambient_modes.refusal(module, [None, "text"]) is None  # no tensor, nothing that it changes
