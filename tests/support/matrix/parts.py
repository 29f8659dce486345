"""What a case can add besides the ingredients of random workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..fuzz.ingredients import Kind, Stage, Wire
from ..fuzz.workflow import Link, Values, Workflow, controlnet_file, output

KINDS: dict[str, Kind] = {}


def _never(values: Values) -> bool:
    return False


def _part(stage: Stage) -> Callable[[Wire], Wire]:
    def register(wire: Wire) -> Wire:
        KINDS[wire.__name__] = Kind(wire.__name__, stage, lambda rng: {}, wire, _never)
        return wire

    return register


def _patch(*class_types: str) -> None:
    """Nodes with one MODEL going through; a part's values are the node's inputs."""
    for class_type in class_types:

        def wire(work: Workflow, values: Values, class_type: str = class_type) -> None:
            work.model = work.add(class_type, model=work.model, **values)

        KINDS[class_type] = Kind(class_type, "model", lambda rng: {}, wire, _never)


_patch(
    "ModelSamplingContinuousEDM",
    "ModelSamplingContinuousV",
    "ModelComputeDtype",
    "ContextWindowsManual",
    "TorchCompileModel",
    "OneGraphTestImageAdapter",
    "OneGraphTestAttentionOverride",
    "OneGraphTestWrapper",
)


@_part("model")
def merge_into_second(work: Workflow, values: Values) -> None:
    """The other order of a merge: this model is the one that is merged into another."""
    work.model = work.add("ModelMergeSimple", model1=work.second_model(), model2=work.model, **values)


# Conditioning ---------------------------------------------------------------------------------------------------


def _control(work: Workflow) -> dict[str, Link]:
    net = work.add("ControlNetLoader", control_net_name=controlnet_file(work.settings.family))
    return {"control_net": net, "image": work.image(7)}


@_part("conditioning")
def controlnet_everywhere(work: Workflow, values: Values) -> None:
    """The older node, which has the negative text controlled too."""
    work.positive = work.add("ControlNetApply", conditioning=work.positive, **_control(work), **values)


@_part("conditioning")
def controlnet_on_positive(work: Workflow, values: Values) -> None:
    """A ControlNet on the positive text alone."""
    applied = work.add(
        "ControlNetApplyAdvanced", positive=work.positive, negative=work.text("unused"), **_control(work),
        start_percent=0.0, end_percent=1.0, **values,
    )  # fmt: skip
    work.positive = applied


def _steer(work: Workflow, net: Link, strength: float) -> None:
    applied = work.add(
        "ControlNetApplyAdvanced", positive=work.positive, negative=work.negative, control_net=net,
        image=work.image(7), strength=strength, start_percent=0.0, end_percent=1.0,
    )  # fmt: skip
    work.positive, work.negative = applied, output(applied, 1)


@_part("conditioning")
def controlnet_compiled(work: Workflow, values: Values) -> None:
    net = _control(work)["control_net"]
    _steer(work, work.add("OneGraphCompileControlNet", control_net=net, shapes="any size", **work.choices), **values)


@_part("conditioning")
def controlnet_of_type(work: Workflow, values: Values) -> None:
    """A ControlNet that is told which of a union's types to be."""
    net = _control(work)["control_net"]
    _steer(work, work.add("SetUnionControlNetType", control_net=net, type="depth"), **values)


@_part("conditioning")
def t2i_adapter(work: Workflow, values: Values) -> None:
    _steer(work, work.add("OneGraphTestT2IAdapter", channels=64), **values)


@_part("conditioning")
def gligen(work: Workflow, values: Values) -> None:
    work.positive = work.add("OneGraphTestGligen", conditioning=work.positive, model=work.loaded, **values)


@_part("conditioning")
def instruct_pix2pix(work: Workflow, values: Values) -> None:
    made = work.add(
        "InstructPixToPixConditioning", positive=work.positive, negative=work.negative, vae=work.vae,
        pixels=work.image(),
    )  # fmt: skip
    work.positive, work.negative, work.latent = made, output(made, 1), output(made, 2)


# Sampling and what comes after -----------------------------------------------------------------------------------


@_part("second pass")
def plain_branch(work: Workflow, values: Values) -> None:
    """The same checkpoint beside it without the node, in the same prompt."""
    compiled, latent = work.model, work.latent
    work.model, work.latent = work.loaded, work.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    work.sample(seed=work.settings.noise + 5)
    image = work.add("VAEDecode", samples=work.latent, vae=work.vae)
    work.add("SaveImage", images=image, filename_prefix="branch")
    work.model, work.latent = compiled, latent


@_part("second pass")
def second_checkpoint(work: Workflow, values: Values) -> None:
    """A second pass by another checkpoint of the architecture, compiled by a node of its own, with its own VAE."""
    second = work.second_model()
    work.model = work.compile_model(second)
    work.sample(seed=work.settings.noise + 5, denoise=0.7)


@_part("decode")
def decode_with_vaes(work: Workflow, values: Values) -> None:
    """The image by two VAEs, each behind a node of its own."""
    other = output(work.second_model(), 2)
    compiled = work.add("OneGraphCompileVAE", vae=other, parts="decoder", dynamic_resolution="auto", **work.choices)
    for number, vae in enumerate((work.vae, compiled)):
        image = work.add("VAEDecode", samples=work.latent, vae=vae)
        work.add("SaveImage", images=image, filename_prefix=f"vae{number}")


def kinds() -> dict[str, Any]:
    """All that a case can add, by name."""
    from ..fuzz import ingredients

    return {**ingredients.KINDS, **KINDS}
