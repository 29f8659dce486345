"""What a model's first call, repeated, shows of sizes admits its later calls. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.models import dits
from support.scenes.sampling import Sampling

from onegraph.compiler.blocks.outer_call import ModelCall, OuterCall, repeat
from onegraph.compiler.blocks.records import recording
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.compiler.code.fingerprint import Rules
from onegraph.signature.size_rules import SizeRules

_tensor, _WAN = dits._tensor, dits._WAN


def _references(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    """Two pictures of other sizes than the video, told as numbers, too."""
    shapes = [(sizes[1] + 4 * n, sizes[2] - 2 * n) for n in (1, 2)]
    refs = [
        {"kind": "image", "latent_h": high, "latent_w": wide, "latent": _tensor(generator, 1, 24, 1, high, wide)}
        for high, wide in shapes
    ]
    return {"minimax_refs": refs}


def _vace(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    shape = (3, *sizes[1:])
    frames, mask = _tensor(generator, 1, 32, *shape), _tensor(generator, 1, 64, *shape)
    return {"vace_frames": [frames], "vace_mask": [mask], "vace_strength": [0.8]}


def _scail(generator: torch.Generator, sizes: Sequence[int]) -> dict[str, Any]:
    """A pose at half the resolution, and a mask for the reference's frame and the video's."""
    _, *sides = sizes
    half = [side // 2 for side in sides]
    return {
        "reference_latents": [_tensor(generator, 1, 16, 1, *sides)], "ref_mask_flag": False,
        "pose_video_latent": _tensor(generator, 1, 16, 3, *half),
        "driving_mask_28ch": _tensor(generator, 1, 3, 28, *half), "ref_mask_28ch": _tensor(generator, 1, 4, 28, *sides),
    }  # fmt: skip


CASES = {
    "minimax h3 r2v": dits.Dit(
        "MiniMaxH3", dits._MINIMAX, (24, 3), (32, 2, 13), conds=_references, after=dits._frequencies
    ),
    "wan vace": dits.Dit(
        "WAN21_Vace",
        {**_WAN, "model_type": "vace", "vace_layers": 2, "vace_in_dim": 96, "num_layers": 4},
        (16, 3),
        conds=_vace,
    ),
    "wan scail 2": dits.Dit("WAN21_SCAIL2", {**_WAN, "model_type": "scail2", "in_dim": 20}, (16, 3), conds=_scail),
}


@pytest.mark.parametrize("name", CASES)
def test_later_steps_and_other_sizes_are_admitted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dits.DITS, name, CASES[name])
    patcher = dits.load(name)
    model = patcher.model.diffusion_model
    blocks = {key: one for key, one in repeated_blocks(model).items() if "refiner" not in key}  # called once a prompt
    first: list[OuterCall] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        first.append(OuterCall.of(model, ModelCall(args, kwargs)))
        return type(model).forward(model, *args, **kwargs)

    monkeypatch.setattr(model, "forward", forward, raising=False)
    with recording(blocks, Rules(), ("comfy",)) as called:
        Sampling(name, patcher, steps=3, cfg=1.0).run()
        Sampling(name, patcher, steps=3, cfg=1.0, height=12, width=20, tokens=(30, 7)).run()
    with torch.no_grad(), recording(blocks, Rules(), ("comfy",)) as repeated:
        assert repeat(model, first[0], torch.device("cpu"), repeated) == 3
    assert called.kinds
    for kind in called.kinds:
        shown = next(one for one in repeated.kinds if one.form == kind.form and {*one.names} & {*kind.names})
        rules = SizeRules.infer([kind.records[0], *shown.records])
        assert len(kind.records) > 1 and all(map(rules.fits, kind.records)), kind.names
