"""What a case can add besides the ingredients of random workflows."""

from __future__ import annotations

from ..scenes.kinds import kind, patch
from ..scenes.workflow import Link, Values, Workflow, output

for _class_type in (
    "ModelSamplingContinuousEDM", "ModelSamplingContinuousV", "ModelComputeDtype", "ContextWindowsManual",
    "TorchCompileModel", "OneGraphTestImageAdapter",
):  # fmt: skip
    patch(_class_type, weight=0)


@kind("model", weight=0)
def merge_into_second(work: Workflow, values: Values) -> None:
    """The other order of a merge: this model is the one that is merged into another."""
    work.model = work.add("ModelMergeSimple", model1=work.second_model(), model2=work.model, **values)


# Conditioning ---------------------------------------------------------------------------------------------------


def _control(work: Workflow) -> dict[str, Link]:
    return {"control_net": work.controlnet(), "image": work.image(7)}


@kind("conditioning", weight=0)
def controlnet_everywhere(work: Workflow, values: Values) -> None:
    """The older node, which has the negative text controlled too."""
    work.positive = work.add("ControlNetApply", conditioning=work.positive, **_control(work), **values)


@kind("conditioning", weight=0)
def controlnet_on_positive(work: Workflow, values: Values) -> None:
    """A ControlNet on the positive text alone."""
    applied = work.add(
        "ControlNetApplyAdvanced", positive=work.positive, negative=work.text("unused"), **_control(work),
        start_percent=0.0, end_percent=1.0, **values,
    )  # fmt: skip
    work.positive = applied


@kind("conditioning", weight=0)
def controlnet_compiled(work: Workflow, values: Values) -> None:
    net = work.controlnet()
    work.steer(work.add("OneGraphCompileControlNet", control_net=net, shapes="any size", **work.choices), **values)


@kind("conditioning", weight=0)
def controlnet_of_type(work: Workflow, values: Values) -> None:
    """A ControlNet that is told which of a union's types to be."""
    work.steer(work.add("SetUnionControlNetType", control_net=work.controlnet(), type="depth"), **values)


@kind("conditioning", weight=0)
def t2i_adapter(work: Workflow, values: Values) -> None:
    work.steer(work.add("OneGraphTestT2IAdapter", channels=64), **values)


@kind("conditioning", weight=0)
def gligen(work: Workflow, values: Values) -> None:
    work.positive = work.add("OneGraphTestGligen", conditioning=work.positive, model=work.loaded, **values)


@kind("conditioning", weight=0)
def instruct_pix2pix(work: Workflow, values: Values) -> None:
    made = work.add("InstructPixToPixConditioning", **work.texts, vae=work.vae, pixels=work.image())
    work.positive, work.negative, work.latent = made, output(made, 1), output(made, 2)


# Sampling and what comes after -----------------------------------------------------------------------------------


@kind("second pass", weight=0)
def plain_branch(work: Workflow, values: Values) -> None:
    """The same checkpoint beside it without the node, in the same prompt."""
    compiled, latent = work.model, work.latent
    work.model, work.latent = work.loaded, work.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    work.sample(seed=work.settings.noise + 5)
    work.save_image(work.add("VAEDecode", samples=work.latent, vae=work.vae), "branch")
    work.model, work.latent = compiled, latent


@kind("second pass", weight=0)
def second_checkpoint(work: Workflow, values: Values) -> None:
    """A second pass by another checkpoint of the architecture, compiled by a node of its own, with its own VAE."""
    second = work.second_model()
    work.model = work.compile_model(second)
    work.sample(seed=work.settings.noise + 5, denoise=0.7)


@kind("decode", weight=0)
def decode_with_vaes(work: Workflow, values: Values) -> None:
    """The image by two VAEs, each behind a node of its own."""
    other = output(work.second_model(), 2)
    compiled = work.add("OneGraphCompileVAE", vae=other, parts="decoder", dynamic_resolution="auto", **work.choices)
    for number, vae in enumerate((work.vae, compiled)):
        work.save_image(work.add("VAEDecode", samples=work.latent, vae=vae), f"vae{number}")
