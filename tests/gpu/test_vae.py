"""A compiled VAE on the GPU, in the dtype ComfyUI picks there, against eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from headless import host

from .conftest import CHECKPOINT, compiled_vae

pytestmark = pytest.mark.usefixtures("vae_graphs", "engine")
# Relative L2 of bfloat16 images and latents; a full-size VAE is at 2.6e-2, eager itself 2.3e-2 from float32.
BOUND = 8e-2
MANY = 6


@pytest.fixture
def vae(base: Path) -> Any:
    return host.load_vae(base / "models/checkpoints" / CHECKPOINT)


def latents(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 4, height, width, generator=torch.Generator().manual_seed(seed))


def pixels(batch: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, height, width, 3, generator=torch.Generator().manual_seed(seed))


def check(call: Callable[[Any, torch.Tensor], torch.Tensor], vae: Any, given: list[torch.Tensor]) -> None:
    """All compiled results, kept until the last is there, against eager's."""
    from onegraph.runtime.graphs.faithfulness import relative_l2

    def each(which: Any) -> list[torch.Tensor]:
        results = []
        for x in given:
            torch.manual_seed(0)  # an encoder draws its latents
            results.append(call(which, x))
        return results

    compiled = compiled_vae(vae)
    host.wait_for_preloads()  # so that it is known who takes the graphs up
    served, eager = each(compiled), each(vae)
    errors = [relative_l2(a, b) for a, b in zip(served, eager, strict=True)]
    assert max(errors) < BOUND, errors


def decode(vae: Any, z: torch.Tensor) -> torch.Tensor:
    image: torch.Tensor = vae.decode(z)
    return image


def encode(vae: Any, image: torch.Tensor) -> torch.Tensor:
    z: torch.Tensor = vae.encode(image)
    return z


def counted(engine: Any) -> tuple[int, int, int, int]:
    """(compiles, restores, preloads, eager calls)."""
    counters = engine.counters
    return counters.compiles, counters.restores, counters.preloads, counters.eager_calls


def test_decode_of_any_size_and_batch(vae: Any, engine: Any) -> None:
    check(decode, vae, [latents(*shape) for shape in ((1, 32, 32), (1, 64, 48), (3, 24, 16), (1, 96, 128))])
    assert counted(engine) == (0, 2, 2, 0)


def test_encode_of_any_size_and_batch(vae: Any, engine: Any) -> None:
    check(encode, vae, [pixels(*shape) for shape in ((1, 256, 256), (2, 128, 192), (1, 512, 384))])
    assert counted(engine) == (0, 2, 2, 0)


def test_the_same_size_again_and_again(vae: Any, engine: Any) -> None:
    check(decode, vae, [latents(1, 32, 32, seed) for seed in range(MANY)])
    check(decode, vae, [latents(2, 32, 32, seed) for seed in range(MANY)])  # one call for each image of a batch
    check(encode, vae, [pixels(1, 256, 256, seed) for seed in range(MANY)])
    assert engine.counters.eager_calls == 0


def test_weights_changed_in_place(vae: Any, engine: Any) -> None:
    z = [latents(1, 32, 32, seed) for seed in range(MANY)]
    check(decode, vae, z)
    vae.first_stage_model.get_parameter("post_quant_conv.weight").mul_(1.3)
    vae.first_stage_model.get_parameter("decoder.conv_out.bias").add_(0.1)
    check(decode, vae, z)
    assert engine.counters.eager_calls == 0


def test_there_and_back_is_as_exact_as_eager(base: Path, vae: Any, engine: Any) -> None:
    """Decode, encode, decode: rounding adds up, for eager, too; float32 tells whose is larger."""
    import comfy.sd
    import comfy.utils

    from onegraph.runtime.graphs.faithfulness import relative_l2

    weights = comfy.utils.load_torch_file(str(base / "models/checkpoints" / CHECKPOINT))
    weights = comfy.utils.state_dict_prefix_replace(weights, {"first_stage_model.": ""}, filter_keys=True)
    exact = comfy.sd.VAE(sd=weights, dtype=torch.float32)

    def chain(which: Any, z: torch.Tensor) -> torch.Tensor:
        image = decode(which, z)
        torch.manual_seed(0)
        return decode(which, encode(which, image))

    given = [latents(1, 32, 32, seed) for seed in range(4)]
    wanted = [chain(exact, z) for z in given]
    ours, eagers = (
        [relative_l2(chain(which, z), image) for z, image in zip(given, wanted, strict=True)]
        for which in (compiled_vae(vae), vae)
    )
    assert sum(ours) <= 1.5 * sum(eagers), (ours, eagers)
    assert engine.counters.eager_calls == 0
