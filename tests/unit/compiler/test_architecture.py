from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from support import toy

from onegraph.compiler.architecture import digest


def test_weights_and_mode_do_not_matter() -> None:
    assert digest(toy.Toy(seed=1)) == digest(toy.Toy(seed=2).eval())


def test_a_head_count_that_no_weight_shows_matters() -> None:
    assert digest(toy.Toy(heads=2)) != digest(toy.Toy(heads=4))


@pytest.mark.parametrize("change", ["dtype", "stride", "class", "extra buffer"])
def test_what_compiled_code_relies_on_matters(change: str) -> None:
    module = toy.Toy()
    if change == "dtype":
        module.half()
    elif change == "stride":
        module.mix.weight = torch.nn.Parameter(module.mix.weight.t(), requires_grad=False)
    elif change == "class":
        module = toy.Fixed()
    else:
        module.register_buffer("more", torch.zeros(1))
    assert digest(module) != digest(toy.Toy())


def test_placement_attributes_are_left_out_only_when_named_volatile() -> None:
    module = toy.Toy()
    module.out.comfy_cast_weights = True  # type: ignore[assignment]
    assert digest(module) != digest(toy.Toy())
    assert digest(module, volatile=lambda name: "comfy" in name) == digest(toy.Toy())


def test_one_edited_line_of_the_models_source_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\nclass M(torch.nn.Linear):\n    def forward(self, x): return super().forward(x) * {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for factor in (1, 22):
        (tmp_path / "edited_model.py").write_text(source.format(factor))
        sys.modules.pop("edited_model", None)
        importlib.invalidate_caches()
        digests.append(digest(importlib.import_module("edited_model").M(2, 2)))
    assert digests[0] != digests[1]
