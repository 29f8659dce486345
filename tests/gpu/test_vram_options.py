"""ComfyUI's options for VRAM and dtype: the image is eager's, nothing crashes and nothing compiles again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from headless import host, server, workflows

from .conftest import LORA
from .images import assert_same, differences, txt2img

OPTIONS = {  # and how the node begins to speak at the first image, where that is sure
    "--highvram": "restored in ",
    "--lowvram": "restored in ",
    "--disable-dynamic-vram": "restored in ",
    "--disable-dynamic-vram --lowvram": "",
    "--novram": "",
}
COMBINED = {"--disable-dynamic-vram --lowvram"}  # of two that are tried alone


def _prompts() -> list[workflows.Prompt]:
    return [txt2img(), txt2img(seed=2, steps=12), workflows.with_lora(txt2img(), LORA, 1.0)]


@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=pytest.mark.full) if one in COMBINED else one for one in OPTIONS]
)
def test_the_image_is_eagers(
    options: str,
    base: Path,
    environment: dict[str, str],
    unet_graph: Callable[[torch.dtype], None],
    vae_graphs: None,
) -> None:
    unet_graph(torch.float16)
    with server.running(
        base, host.comfyui_path(), env=environment, options=tuple(options.split()), device=()
    ) as running:
        texts = []
        for prompt in _prompts():
            result, eager = running.run(prompt), running.run(workflows.without_onegraph(prompt))
            texts.append(result.text("2"))
            print(options, texts[-1], result.text("vae"))
            assert_same(result, eager)
        assert texts[0].startswith(OPTIONS[options]), texts
        assert running.status()["compiles"] == 0


def test_bfloat16_is_as_close_to_float32_as_eager(
    base: Path, environment: dict[str, str], unet_graph: Callable[[torch.dtype], None], vae_graphs: None
) -> None:
    """bfloat16 moves pixels by more than any fixed bound that would still tell a wrong image."""
    unet_graph(torch.bfloat16)

    def images(option: str, prompts: list[workflows.Prompt]) -> tuple[list[server.Outcome], int]:
        with server.running(base, host.comfyui_path(), env=environment, options=(option,), device=()) as running:
            return [running.run(prompt) for prompt in prompts], running.status()["compiles"]

    plain = [workflows.without_onegraph(prompt) for prompt in _prompts()]
    with ThreadPoolExecutor() as pool:
        reference_images = pool.submit(images, "--fp32-unet", plain)
        found, compiles = images("--bf16-unet", [*plain, *_prompts()])
        exact, _ = reference_images.result()
    assert compiles == 0
    assert found[len(plain)].text("2").startswith("restored in "), found[len(plain)].texts
    for reference, eager, compiled in zip(exact, found[: len(plain)], found[len(plain) :], strict=True):
        ((largest_eager, mean_eager),) = differences(eager, reference)
        ((largest, mean),) = differences(compiled, reference)
        print(f"to float32, of 255: {largest}, mean {mean:.2f}; eager {largest_eager}, mean {mean_eager:.2f}")
        assert mean < 1.2 * mean_eager + 0.2, compiled.texts
