"""ComfyUI's options for VRAM and dtype: the image is eager's, nothing crashes and nothing compiles again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import host, server, workflows

from .conftest import LORA
from .images import assert_same, txt2img

OPTIONS = {  # and how the node begins to speak at the first image, where that is sure
    "--highvram": "restored in ",
    "--lowvram": "restored in ",
    "--disable-dynamic-vram": "restored in ",
    "--disable-dynamic-vram --lowvram": "",
    "--novram": "",
    "--bf16-unet": "restored in ",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_image_is_eagers(
    options: str,
    base: Path,
    environment: dict[str, str],
    unet_graph: Callable[[torch.dtype], None],
    vae_graphs: None,
) -> None:
    unet_graph(torch.bfloat16 if "bf16" in options else torch.float16)
    prompts = [txt2img(), txt2img(seed=2, steps=12), workflows.with_lora(txt2img(), LORA, 1.0)]
    with server.running(
        base, host.comfyui_path(), env=environment, options=tuple(options.split()), device=()
    ) as running:
        said = []
        for prompt in prompts:
            result, eager = running.run(prompt), running.run(workflows.without_onegraph(prompt))
            said.append(result.text("2"))
            print(options, said[-1], result.text("vae"))
            assert_same(result, eager)
        assert said[0].startswith(OPTIONS[options]), said
        assert running.status()["compiles"] == 0
