"""Which attention graphs call on a GPU. What the GPU itself measures is in tests/gpu/test_attention.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from onegraph.backends.inductor import attention_choice
from onegraph.backends.inductor.attention_choice import Measured

GPU = torch.device("cuda:0")


class Card:
    """Stands for a GPU: what torch tells of it, and what is measured on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.cudnn, self.error = "Card 1", True, None
        self.capability = 8, 0
        self.measured = 0
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: self.name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: self.capability)
        monkeypatch.setattr(attention_choice, "measure", self.measure)

    name: str
    error: Exception | None

    def measure(self, device: torch.device) -> Measured:
        self.measured += 1
        if self.error is not None:
            raise self.error
        return Measured(self.cudnn, {"flash": 2.0, "cudnn": 1.0 if self.cudnn else 3.0})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def card(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(monkeypatch)


@pytest.mark.parametrize("faster", [True, False])
def test_a_machine_measures_once(card: Card, faster: bool) -> None:
    card.cudnn = faster
    assert [attention_choice.cudnn_is_faster(GPU) for _ in range(3)] == [faster] * 3
    assert card.measured == 1


def test_another_card_and_another_torch_measure_for_themselves(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attention_choice.cudnn_is_faster(GPU)
    card.name, card.cudnn = "Card 2", False
    assert not attention_choice.cudnn_is_faster(GPU)
    monkeypatch.setattr(torch, "__version__", "99.0")
    card.cudnn = True
    assert attention_choice.cudnn_is_faster(GPU)
    assert card.measured == 3


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"flash": 1}'])
def test_a_damaged_note_is_measured_again(card: Card, cache: Path, text: str) -> None:
    attention_choice.cudnn_is_faster(GPU)
    (note,) = cache.rglob("attention-*.json")
    note.write_text(text, encoding="utf-8")
    assert attention_choice.cudnn_is_faster(GPU)
    assert card.measured == 2


def test_where_it_cannot_be_measured_the_table_decides_and_nothing_is_kept(card: Card, cache: Path) -> None:
    card.error = torch.OutOfMemoryError("none left")
    assert not attention_choice.cudnn_is_faster(GPU)
    card.capability = 9, 0
    assert attention_choice.cudnn_is_faster(GPU)
    assert not [*cache.rglob("attention-*")]


def test_a_folder_that_cannot_be_written_costs_a_measurement_alone(card: Card, cache: Path) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file", encoding="utf-8")
    assert attention_choice.cudnn_is_faster(GPU)
    assert attention_choice.cudnn_is_faster(GPU)
    assert card.measured == 2


@pytest.mark.parametrize(("attends", "device", "measured"), [(True, GPU, 1), (False, GPU, 0), (True, "cpu", 0)])
def test_only_graphs_that_attend_on_a_gpu_have_it_measured(
    card: Card, attends: bool, device: Any, measured: int
) -> None:
    class Attending(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x) if attends else x + 1

    exported = torch.export.export(Attending(), (torch.randn(1, 2, 8, 16),))
    assert attention_choice.is_cudnn_first(exported, torch.device(device)) is bool(measured)
    assert card.measured == measured


def times(monkeypatch: pytest.MonkeyPatch, cudnn: float) -> None:
    """Have both computed here, and clocks tell that FlashAttention takes 1 and cuDNN's so many milliseconds."""

    def ways(given: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
        def call() -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*given)

        return {"flash": call, "cudnn": call}

    turns = {"at": 0}

    def milliseconds(call: Callable[[], object], device: torch.device) -> float:
        turns["at"] += 1
        return cudnn if turns["at"] % 2 == 0 else 1.0

    monkeypatch.setattr(attention_choice, "_SHAPES", ((1, 2, 300, 16, torch.bfloat16),))
    monkeypatch.setattr(attention_choice, "_ways", ways)
    monkeypatch.setattr(attention_choice, "_milliseconds", milliseconds)


@pytest.mark.parametrize(("cudnn", "chosen"), [(0.5, True), (0.99, False), (2.0, False)])
def test_the_faster_one_is_chosen(monkeypatch: pytest.MonkeyPatch, cudnn: float, chosen: bool) -> None:
    times(monkeypatch, cudnn)
    assert attention_choice.measure(torch.device("cpu")) == Measured(chosen, {"flash": 1.0, "cudnn": cudnn})


def test_one_that_is_less_exact_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 0.5)
    usual = attention_choice._ways

    def wrong(given: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
        right = usual(given)
        return right | {"cudnn": lambda: right["cudnn"]() + 0.1}

    monkeypatch.setattr(attention_choice, "_ways", wrong)
    assert not attention_choice.measure(torch.device("cpu")).cudnn
