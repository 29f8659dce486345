"""What compiling a UNet around its transformer blocks could give: `python -m benchmarks.gpu.around_blocks`.

Patches such as IPAdapter's replace the attention in every transformer block of SDXL's base, so that these blocks have
to run the host's own code. What is left is timed by itself, eager and compiled (torch.compile, one size, fullgraph),
with the blocks replaced by the identity: a step then takes what it takes now, less the rest eager, plus the rest
compiled. Prints one line of JSON; times are medians in milliseconds of a call of batch 2.
"""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import torch
from torch import nn

from .common import median_ms
from .pipelines import BASE, POOLED

ROUNDS = 12


class _Identity(nn.Module):
    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states


def without_blocks(unet: nn.Module) -> nn.Module:
    """A copy that shares all weights and does nothing in its transformer blocks."""
    memo = {id(p): p for p in unet.parameters()}
    result = copy.deepcopy(unet, memo)
    for module in result.modules():
        blocks = getattr(module, "transformer_blocks", None)
        if isinstance(blocks, nn.ModuleList):
            module.transformer_blocks = nn.ModuleList(_Identity() for _ in blocks)
    return result


def measure(config: dict[str, Any], side: int, device: str) -> dict[str, float]:
    from diffusers import UNet2DConditionModel

    torch.manual_seed(1)
    torch.set_default_dtype(torch.float16)
    with torch.device(device):
        unet = UNet2DConditionModel(**config).eval()
        sample = torch.randn(2, 4, side // 8, side // 8)
        states = torch.randn(2, 77, config["cross_attention_dim"])
        added = {"text_embeds": torch.randn(2, POOLED), "time_ids": torch.ones(2, 6)}
        timestep = torch.tensor(500)
    torch.set_default_dtype(torch.float32)
    rest = without_blocks(unet)
    given = {"encoder_hidden_states": states, "added_cond_kwargs": added, "return_dict": False}
    calls = {"whole": unet, "rest": rest, "rest_compiled": torch.compile(rest, fullgraph=True, dynamic=False)}
    with torch.no_grad():
        times = median_ms({k: lambda one=one: one(sample, timestep, **given) for k, one in calls.items()}, ROUNDS)
    blocks = times["whole"] - times["rest"]
    times |= {
        "gain": round(times["whole"] / (blocks + times["rest_compiled"]), 3),
        "gain_if_the_rest_were_free": round(times["whole"] / blocks, 3),
    }
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description="What compiling around the transformer blocks could give.")
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    print(json.dumps(measure(BASE, options.side, options.device)))


if __name__ == "__main__":
    main()
