"""What backends can do besides compiling and running, and how they say that they cannot."""

from __future__ import annotations

import pytest
import torch

from onegraph import backends
from onegraph.backends import Availability, SharesCompiles, rebuilder
from onegraph.common.reasons import WrongDeviceType


def test_what_is_available_has_no_reason() -> None:
    assert backends.AVAILABLE.ok
    assert backends.AVAILABLE.reason is None
    assert backends.AVAILABLE.text == ""


def test_a_refusal_is_a_value_with_a_sentence() -> None:
    refused = Availability(WrongDeviceType("AOTInductor", "mps"))
    assert not refused.ok
    assert refused.text == "AOTInductor graphs run on CPU and CUDA devices, not on mps"


@pytest.mark.parametrize("name", backends.known())
def test_no_backend_runs_on_an_unknown_device(name: str) -> None:
    refused = backends.get(name).can_run(torch.device("meta"))
    assert refused.reason is not None
    assert refused.text == refused.reason.text


def test_only_oneflow_rebuilds_graphs() -> None:
    found = backends.get("oneflow")
    assert rebuilder(found) is found
    assert rebuilder(backends.get("inductor")) is None


def test_only_inductor_shares_compiles() -> None:
    assert [name for name in backends.known() if isinstance(backends.get(name), SharesCompiles)] == ["inductor"]


def test_an_unknown_backend_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="tvm"):
        backends.get("tvm")
