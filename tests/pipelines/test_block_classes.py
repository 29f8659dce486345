"""Small models of diffusers' classes with repeated blocks: compiled, every call is eager's result, at all sizes.

Each case writes its row into build/diffusers_blocks.json, of which tools/diffusers_blocks.py makes the table in
docs/diffusers.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models.diffusers_blocks import CASES, Case, judged
from support.scenes.process import new_process

from onegraph.pipelines import compile_module
from onegraph.pipelines.families import family_of
from onegraph.pipelines.families.blocks import Blocks
from onegraph.runtime.obtain.registry import Registry

REPORT = Path(__file__).resolve().parents[2] / "build" / "diffusers_blocks.json"
EXACT = 1e-6
DEFAULT = ("QwenImageTransformer2DModel", "WanTransformer3DModel")
# Classes that diffusers names blocks of and that have no case, and why.
UNTRIED = {
    "AnyFlowFARTransformer3DModel": "its forward takes caches of keys and values that its pipeline builds",
    "AutoencoderKLMiniMaxH3": "a VAE, whose calls are taken of its halves",
    "Cosmos3OmniTransformer": "its calls are lists of indices that its pipeline builds",
    "Ideogram4Transformer2DModel": "its calls are packed sequences that its pipeline builds",
    "JoyImageEditPlusTransformer3DModel": "its calls are padded lists of shapes that its pipeline builds",
    "MiniMaxH3Transformer3DModel": "its calls are packed sequences that its pipeline builds",
    "UNet2DConditionModel": "served as a whole",
    "DreamLiteUNetModel": "its blocks stand within levels of a UNet",
    "WanAnimate2Transformer3DModel": "its forward takes caches of keys and values that its pipeline builds",
    "WanAnimateTransformer3DModel": "its forward takes faces and poses as encoders of its own make them",
}


def _params() -> Iterator[Any]:
    for name, case in CASES.items():
        yield pytest.param(case, id=name, marks=() if name in DEFAULT else pytest.mark.full)


@pytest.mark.parametrize("case", [*_params()])
def test_every_call_is_eagers(case: Case, tmp_path_factory: pytest.TempPathFactory, request: Any) -> None:
    kept: Path | None = request.config.getoption("--pipelines-home")
    home = (kept or tmp_path_factory.getbasetemp()) / "classes"
    with new_process(home) as registry:
        found = judged(case)
        assert registry is not None
        note = {**asdict(found), "eager_calls": sum(found.eager.values())}
    rows = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({**rows, case.name: note}, indent=1))
    assert found.worst < EXACT, found
    assert (found.calls, dict(found.eager)) == (case.calls, dict(case.eager)), found


def test_every_class_with_named_blocks_has_a_case() -> None:
    import diffusers
    from diffusers import ModelMixin

    found = {name: getattr(diffusers, name, None) for name in dir(diffusers)}
    named = {
        cls.__name__
        for cls in found.values()
        if isinstance(cls, type) and issubclass(cls, ModelMixin) and cls._repeated_blocks
    }
    assert len(named) >= 17
    assert named <= {*CASES, *UNTRIED}, named - {*CASES, *UNTRIED}


@pytest.mark.parametrize("name", CASES)
def test_all_are_offered(name: str) -> None:
    model = CASES[name].model()
    compile_module(model, when_missing="eager")
    assert isinstance(family_of(model), Blocks)
    with torch.no_grad():
        model(**CASES[name].arguments())
    (report,) = model.onegraph.report().components
    assert report.compiled_calls == 0 and set(report.codes) <= {"no_graph"}


def test_a_processor_changed_in_place_asks_for_another_graph(fresh: Registry) -> None:
    """Nothing of the module's own has changed then."""
    case = CASES["QwenImageTransformer2DModel"]
    model: Any = compile_module(case.model(), when_missing="eager")
    (component,) = model.onegraph.components.values()
    with torch.no_grad():
        for _ in range(2):
            model(**case.arguments())
            assert len(component.used) == 1
        model.transformer_blocks[1].attn.processor.scale = 0.25
        model(**case.arguments())
    assert len(component.used) == 2


@pytest.mark.parametrize(
    "name",
    ["AudioLDM2UNet2DConditionModel", "StableCascadeUNet", "UNet2DModel", "UNetControlNetXSModel", "UNetMotionModel"],
)
def test_unets_without_a_family_run_as_they_did(name: str) -> None:
    import diffusers

    cls = getattr(diffusers, name)
    with torch.device("meta"):
        model: Any = compile_module(type("Derived", (cls,), {})())
    (report,) = model.onegraph.report().components
    assert {*report.codes} == {"not_compilable"}


def test_several_models_in_a_list_are_no_blocks() -> None:
    from diffusers import ControlNetModel, MultiControlNetModel
    from support.models import pipes

    nets = [ControlNetModel.from_unet(pipes.unet()) for _ in range(2)]
    assert family_of(MultiControlNetModel(nets)) is None
    assert not isinstance(family_of(pipes.unet()), Blocks)
    assert family_of(pipes.vae()) is None and family_of(pipes.text_encoder()) is None
