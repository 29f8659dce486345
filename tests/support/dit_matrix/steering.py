"""What steers the model from outside: more conditioning, areas, masks, ControlNets, reference pictures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from ..comfyui import dit_controlnets
from ..models import dits
from ..scenes.sampling import Addition, Sampling, Texts, on_text, result_of

PIXELS = 8  # of a unit of the latent


def drawn(*shape: int, seed: int = 8) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def picture(sampling: Sampling) -> torch.Tensor:
    """Pixels [1, H, W, 3] of the latent's size."""
    return drawn(1, PIXELS * sampling.height, PIXELS * sampling.width, 3).sigmoid()


class Vae:
    """Stands for a VAE whose latents have 16 channels."""

    def __init__(self, frames: bool) -> None:
        self._frames = frames

    def encode(self, image: torch.Tensor) -> torch.Tensor:
        small = torch.nn.functional.avg_pool2d(image.movedim(-1, 1), PIXELS) * 4 - 2
        found = small.repeat(1, 6, 1, 1)[:, :16]
        return found[::4].movedim(0, 1)[None] if self._frames else found  # the first frame, then each fourth

    def spacial_compression_encode(self) -> int:
        return PIXELS

    def temporal_compression_decode(self) -> int:
        return 4


def combined(words: int, *, module: str = "", name: str = "", **values: Any) -> Addition:
    """A second positive text, for the whole picture or as a node of the host limits it."""

    def add(sampling: Sampling) -> None:
        def both(text: Texts) -> Texts:
            second = sampling.text(5, words)
            return [*text, *(result_of(module, name, conditioning=second, **values) if name else second)]

        sampling.adding.append(both)

    return add


def masked_text(bounds: str) -> Addition:
    """A second text for a part of the picture, by a mask."""

    def add(sampling: Sampling) -> None:
        mask = torch.zeros(1, PIXELS * sampling.height, PIXELS * sampling.width)
        mask[:, : PIXELS * sampling.height // 2, : PIXELS * 8] = 1.0
        more = {"mask": mask, "strength": 1.3, "set_cond_area": bounds}
        combined(9, module="nodes", name="ConditioningSetMask", **more)(sampling)

    return add


def by_timestep(sampling: Sampling) -> None:
    """Another text of another length in the first half."""

    def both(text: Texts) -> Texts:
        first = result_of(
            "nodes", "ConditioningSetTimestepRange", conditioning=sampling.text(5, 20), start=0.0, end=0.5
        )
        then = result_of("nodes", "ConditioningSetTimestepRange", conditioning=text, start=0.5, end=1.0)
        return [*first, *then]

    sampling.adding.append(both)
    sampling.steps = 4


def inpainted(soft: float = 1.0) -> Addition:
    """Half of the picture is sampled anew, over one that is there. `soft`: the mask's value there."""

    def add(sampling: Sampling) -> None:
        sampling.latent_filled = True
        latent = sampling.latent()
        mask = torch.zeros(latent.shape[0], 1, *latent.shape[2:])
        mask[..., latent.shape[-1] // 2 :] = soft
        sampling.mask = mask

    return add


def first_frame_kept(sampling: Sampling) -> None:
    """The first frame is a picture: other frames' timesteps are not its."""
    sampling.latent_filled = True
    latent = sampling.latent()
    mask = torch.ones(latent.shape[0], 1, *latent.shape[2:])
    mask[:, :, 0] = 0.0
    sampling.mask = mask


def image_to_image(sampling: Sampling) -> None:
    sampling.latent_filled, sampling.denoise, sampling.steps = True, 0.6, 3


def style(count: int, strength: float = 1.0, kind: str = "multiply") -> Addition:
    """Redux: features of a picture behind the text's."""

    def add(sampling: Sampling) -> None:
        features = drawn(1, count, sampling.dit.width)
        model = SimpleNamespace(get_cond=lambda output: features.clone())
        on_text(
            "nodes",
            "StyleModelApply",
            style_model=model,
            clip_vision_output=None,
            strength=strength,
            strength_type=kind,
        )(sampling)

    return add


def references(count: int, method: str = "") -> Addition:
    """Reference latents, of sizes of their own."""

    def add(sampling: Sampling) -> None:
        import node_helpers

        def more(text: Texts) -> Any:
            channels, *frames = sampling.dit.latent
            shapes = [(1, channels, *frames[:1], sampling.height - 2 * n, sampling.width + 4 * n) for n in range(count)]
            values: dict[str, Any] = {"reference_latents": [drawn(*shape, seed=n) for n, shape in enumerate(shapes)]}
            return node_helpers.conditioning_set_values(
                text, values | ({"reference_latents_method": method} if method else {})
            )

        sampling.adding.append(more)

    return add


def conditioned(**shapes: Any) -> Addition:
    """Values of a text's conditioning; a tuple stands for a tensor of that shape."""

    def add(sampling: Sampling) -> None:
        import node_helpers

        values = {name: drawn(*one) if isinstance(one, tuple) else one for name, one in shapes.items()}
        sampling.adding.append(lambda text: node_helpers.conditioning_set_values(text, values))

    return add


def image_to_video(sampling: Sampling) -> None:
    """Wan's first frame and what CLIP sees in it."""
    import node_helpers

    def more(text: Texts) -> Any:
        latent = sampling.latent()
        frame, mask = drawn(*latent.shape[:1], 16, *latent.shape[2:]), torch.ones(1, 1, *latent.shape[2:])
        mask[:, :, 0] = 0.0
        return node_helpers.conditioning_set_values(text, {"concat_latent_image": frame, "concat_mask": mask})

    sampling.adding.append(more)


def residual_net(width: int, where: tuple[str, ...] = ("input", "output"), blocks: int = 2, patch: int = 2) -> Any:
    """A ControlNet of another pack: random residuals for the first blocks."""
    import comfy.controlnet

    class Net(comfy.controlnet.ControlBase):  # type: ignore[misc, name-defined]
        def get_control(self, x: Any, t: Any, cond: Any, count: int, options: Any) -> dict[str, list[Any]]:
            tokens = x[0, 0].numel() // patch**2
            found = drawn(x.shape[0], tokens, width) * 0.3
            return {name: [found.to(x)] * blocks for name in where}

        def copy(self) -> Any:
            return self

        def pre_run(self, *args: Any) -> None: ...

        def cleanup(self) -> None: ...

        def get_models(self) -> list[Any]:
            return []

    return Net()


def residuals(width: int, where: tuple[str, ...] = ("input", "output")) -> Addition:
    return lambda sampling: conditioned(control=residual_net(width, where), control_apply_to_uncond=True)(sampling)


def flux_controlnet(strength: float) -> Addition:
    """A ControlNet of the host's own class for Flux, which takes a picture."""

    def add(sampling: Sampling) -> None:
        import comfy.controlnet
        import comfy.model_management

        made = dits.seeded(dit_controlnets.flux(depth_single_blocks=0), 4)
        device = comfy.model_management.get_torch_device()
        net = comfy.controlnet.ControlNet(made, load_device=device, extra_conds=["y", "guidance"])
        hint = picture(sampling).movedim(-1, 1)
        conditioned(control=net.copy().set_cond_hint(hint, strength, (0.0, 1.0)), control_apply_to_uncond=True)(
            sampling
        )

    return add
