"""What other code does between and inside of blocks: the host's model patches, other packs' attention and caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from ..models import dits
from ..scenes.sampling import Addition, Sampling, node, patched, result_of
from .steering import Vae, drawn, picture

_WHOLE = {"start_percent": 0.0, "end_percent": 1.0}  # of the sampling

# Between blocks ---------------------------------------------------------------------------------------------------


def replaced_block(kind: str, number: int, factor: float = 0.5) -> Addition:
    """A pack's function in a block's place, which calls the block."""

    def changed(args: Any, extra: Any) -> Any:
        found = extra["original_block"](args)
        return {**found, "img": found["img"] * factor}

    return patched(lambda model: model.set_model_patch_replace(changed, "dit", kind, number))


def skipped_block(kind: str, number: int) -> Addition:
    def skipped(args: Any, extra: Any) -> Any:
        return {key: one for key, one in args.items() if key in ("img", "txt")}

    return patched(lambda model: model.set_model_patch_replace(skipped, "dit", kind, number))


def skip_layers(double: str, single: str = "") -> Addition:
    """The host's guidance by a prediction with layers skipped."""
    layers = {"double_layers": double, "single_layers": single}
    return node("nodes_slg", "SkipLayerGuidanceDiT", scale=3.0, **layers, **_WHOLE)


def skip_layers_simple(double: str, single: str) -> Addition:
    return node("nodes_slg", "SkipLayerGuidanceDiTSimple", double_layers=double, single_layers=single, **_WHOLE)


skip_layers_sd3 = node("nodes_sd3", "SkipLayerGuidanceSD3", layers="1, 2", scale=3.0, **_WHOLE)


def first_block_cache(kind: str, count: int) -> Addition:
    """A pack's cache: where the first block's result has changed little, the others' are those of the last call."""

    def add(sampling: Sampling) -> None:
        kept: dict[str, Any] = {}

        def of(number: int) -> Any:
            def block(args: Any, extra: Any) -> Any:
                if number == 0:
                    found = extra["original_block"](args)
                    last = kept.get("first")
                    kept["reuse"] = last is not None and last.shape == found["img"].shape and "rest" in kept
                    kept["reuse"] = kept["reuse"] and kept.get("turn", 0) % 2 == 1
                    kept["turn"] = kept.get("turn", 0) + 1
                    kept["first"] = found["img"].clone()
                    return found
                if kept["reuse"]:
                    done = args["img"] + kept["rest"] if number == count - 1 else args["img"]
                    return {**{key: one for key, one in args.items() if key == "txt"}, "img": done}
                found = extra["original_block"](args)
                if number == count - 1:
                    kept["rest"] = found["img"] - kept["first"]
                return found

            return block

        def put(model: Any) -> None:
            for number in range(count):
                model.set_model_patch_replace(of(number), "dit", kind, number)

        patched(put)(sampling)
        sampling.steps, sampling.cfg = 5, 1.0

    return add


def between(name: str) -> Addition:
    """A function of a pack after the input or after each block, as `post_input` and `double_block` patches are."""

    def after(args: dict[str, Any]) -> dict[str, Any]:
        return {**args, "img": _mixed(args["img"])}

    return patched(lambda model: model.set_model_patch(after, name))


def in_place(name: str) -> Addition:
    """The same in the tensor that it is given."""

    def after(args: dict[str, Any]) -> dict[str, Any]:
        args["img"] += args["img"].roll(1, -1)
        return args

    return patched(lambda model: model.set_model_patch(after, name))


def forward_replaced(name: str) -> Addition:
    """A pack's step cache: the model's own method is another one while a call lasts, and answers every other call."""

    def add(sampling: Sampling) -> None:
        kept: list[Any] = []

        def wrapper(apply_model: Any, given: dict[str, Any]) -> Any:
            inner = sampling.model.model.diffusion_model
            original = getattr(inner, name)

            def cached(*args: Any, **kwargs: Any) -> Any:
                if len(kept) % 2 and kept[-1].shape[0] == args[0].shape[0]:
                    kept.append(kept[-1])
                else:
                    kept.append(original(*args, **kwargs).clone())
                return kept[-1]

            with patch.object(inner, name, cached):
                return apply_model(given["input"], given["timestep"], **given["c"])

        patched(lambda model: model.set_model_unet_function_wrapper(wrapper))(sampling)
        sampling.steps = 5

    return add


# Blocks' own modules ----------------------------------------------------------------------------------------------


def _lists(sampling: Sampling) -> list[torch.nn.Module]:
    from onegraph.compiler.blocks.repeated import repeated_blocks

    return [*repeated_blocks(sampling.model.model.diffusion_model).values()]


def swapped_by_hooks(sampling: Sampling) -> None:
    """A pack brings each block's weights when it is called, by a hook on it."""

    def bring(block: torch.nn.Module, args: Any) -> None:
        for one in block.parameters():
            one.data = one.data.clone()

    handles = [block.register_forward_pre_hook(bring) for block in _lists(sampling)]
    sampling.undo.extend(handle.remove for handle in handles)


def swapped_between_blocks(name: str) -> Addition:
    """A pack moves all blocks' weights after each block, by a patch."""

    def add(sampling: Sampling) -> None:
        blocks = _lists(sampling)

        def move(args: dict[str, Any]) -> dict[str, Any]:
            for block in blocks:
                for one in block.parameters():
                    one.data = one.data.clone()
            return {**args, "img": _mixed(args["img"])}

        patched(lambda model: model.set_model_patch(move, name))(sampling)

    return add


def one_block_hooked(sampling: Sampling) -> None:
    handle = _lists(sampling)[-1].register_forward_hook(lambda module, args, output: _mixed(output))
    sampling.undo.append(handle.remove)


def _mixed(output: Any) -> Any:
    """Something else that no norm takes back."""
    return tuple(map(_mixed, output)) if isinstance(output, tuple) else output + output.roll(1, -1)


class Mixed(torch.nn.Module):
    """A layer whose result is mixed with itself."""

    def __init__(self, original: torch.nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, x: torch.Tensor) -> Any:
        return _mixed(self.original(x))


def object_patch(sampling: Sampling) -> None:
    """A layer of a block gives way to another one, as long as the MODEL is loaded."""
    from onegraph.compiler.blocks.repeated import repeated_blocks

    model = sampling.model.model.diffusion_model
    name = [*repeated_blocks(model)][-1]
    inner = next(key for key, one in model.get_submodule(name).named_modules() if isinstance(one, torch.nn.Linear))

    there: Any = model.get_submodule(f"{name}.{inner}".removesuffix(".original"))
    inner = inner.removesuffix(".original")
    made = Mixed(there.original if isinstance(there, Mixed) else there)  # the last MODEL's patches are there still
    patched(lambda one: one.add_object_patch(f"diffusion_model.{name}.{inner}", made))(sampling)


# Attention --------------------------------------------------------------------------------------------------------


def attention_override(sampling: Sampling) -> None:
    """Another attention by the host's own option for it."""

    def attention(function: Any, *args: Any, **kwargs: Any) -> Any:
        return _mixed(function(*args, **kwargs))

    def put(model: Any) -> None:
        model.model_options["transformer_options"]["optimized_attention_override"] = attention

    patched(put)(sampling)


def attention_patch(name: str) -> Addition:
    """A pack's function on queries, keys and values, or on what attention gives."""

    def given(q: Any, k: Any = None, v: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(q, dict):  # as Wan gives it
            return _mixed(q["x"])
        return {"q": q * 0.7, "k": k, "v": v, **{key: one for key, one in kwargs.items() if key in ("pe", "attn_mask")}}

    def output(found: Any, extra: Any) -> Any:
        return _mixed(found)

    return patched(lambda model: model.set_model_patch(output if "output" in name else given, name))


normalized_attention = node("nodes_nag", "NAGuidance", nag_scale=5.0, nag_alpha=0.5, nag_tau=1.5)
kv_cache = node("nodes_flux", "FluxKVCache")  # of what reference pictures' tokens are to attention


# The host's model patches -----------------------------------------------------------------------------------------


def model_patch(module: torch.nn.Module) -> Any:
    """As ModelPatchLoader gives it."""
    import comfy.model_management
    import comfy.model_patcher

    return comfy.model_patcher.CoreModelPatcher(
        dits.seeded(module, 4),
        load_device=comfy.model_management.get_torch_device(),
        offload_device=comfy.model_management.unet_offload_device(),
    )


def made(**sizes: Any) -> dict[str, Any]:
    """What the host gives a module of a patch besides its sizes."""
    import comfy.ops

    return {"device": torch.device("cpu"), "dtype": torch.float32, "operations": comfy.ops.manual_cast, **sizes}


def blockwise() -> Any:
    """A patch of Qwen-Image."""
    from comfy_extras.nodes_model_patch import QwenImageBlockWiseControlNet

    return model_patch(QwenImageBlockWiseControlNet(**made(num_layers=3, dim=128)))


def z_image_control(**sizes: Any) -> Any:
    """A patch of Z-Image."""
    from comfy.ldm.lumina.controlnet import ZImage_Control

    return model_patch(ZImage_Control(**made(dim=256, n_heads=4, n_kv_heads=4, **sizes)))


# The second version of that, which works on the noise refiners as well and takes a mask.
SECOND_CONTROL = {"n_control_layers": 15, "additional_in_dim": 17, "refiner_control": True}


def diffsynth(strength: float) -> Addition:
    def add(sampling: Sampling) -> None:
        given = {"vae": Vae(frames=True), "image": picture(sampling), "strength": strength}
        node("nodes_model_patch", "QwenImageDiffsynthControlnet", model_patch=blockwise(), **given)(sampling)

    return add


def fun_control(strength: float) -> Addition:
    def add(sampling: Sampling) -> None:
        given = {"vae": Vae(frames=False), "image": picture(sampling), "strength": strength}
        node("nodes_model_patch", "ZImageFunControlnet", model_patch=z_image_control(), **given)(sampling)

    return add


def fun_control_2(sampling: Sampling) -> None:
    """Its second version."""
    mask = torch.zeros(1, 8 * sampling.height, 8 * sampling.width)
    mask[:, :, : 4 * sampling.width] = 1.0
    given = {"vae": Vae(frames=False), "image": picture(sampling), "strength": 1.0}
    given |= {"inpaint_image": 1 - picture(sampling), "mask": mask}
    patch = z_image_control(**SECOND_CONTROL)
    node("nodes_model_patch", "ZImageFunControlnet", model_patch=patch, **given)(sampling)


def style_reference(sampling: Sampling) -> None:
    from comfy_extras.nodes_model_patch import SigLIPMultiFeatProjModel

    module = SigLIPMultiFeatProjModel(9, 4, 16, 128, **made())
    seen = SimpleNamespace(all_hidden_states=drawn(1, 24, 9, 16), penultimate_hidden_states=drawn(1, 9, 16))
    node("nodes_model_patch", "USOStyleReference", model_patch=model_patch(module), clip_vision_output=seen)(sampling)


def camera_control(sampling: Sampling) -> None:
    import comfy.ldm.wan.uni3c
    import comfy.model_management

    # The host's node takes all that are loaded, also those of other tests whose patcher has gone.
    loaded = comfy.model_management.current_loaded_models
    loaded[:] = [one for one in loaded if one.model is not None]
    sizes = {"conv_out_dim": 128, "dim": 128, "ffn_dim": 128, "time_embed_dim": 128, "out_proj_dim": 128}
    sizes |= {"in_channels": 36, "num_layers": 2, "add_channels": 7, "mid_channels": 16}
    patch = model_patch(comfy.ldm.wan.uni3c.WanUni3CControlnet(**made(**sizes)))
    given = {"vae": Vae(frames=True), "render_video": picture(sampling).repeat(9, 1, 1, 1), "strength": 1.0, **_WHOLE}
    node("nodes_model_patch", "WanUni3CControlnetApply", model_patch=patch, **given)(sampling)


def block_merge(sampling: Sampling) -> None:
    """The host's merge of blocks, one ratio for each."""
    other = dits.load(sampling.name, seed=9)
    ratios = dict.fromkeys(("double_blocks.0.", "single_blocks.1.", "img_in."), 0.3)
    merging = "nodes_model_merging_model_specific"
    sampling.model = result_of(merging, "ModelMergeFlux1", model1=sampling.model, model2=other, **ratios)
