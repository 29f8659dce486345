"""A model's call is described without its values, and repeated at other sizes that show what varies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import toy_blocks

from onegraph.common.errors import CaptureError, TooSmallError
from onegraph.compiler.blocks.capture import Settings
from onegraph.compiler.blocks.kind import KindCalls, capture_kind
from onegraph.compiler.blocks.other_sizes import Batches, Varying
from onegraph.compiler.blocks.outer_call import ModelCall, OuterCall, repeat
from onegraph.compiler.blocks.records import Recording, recording
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.signature.size_one_dims import SizeOneDims

CPU = torch.device("cpu")
CALL = (2, 6, 10, 7)  # batch, height, width, tokens


class Calls(torch.nn.Module):
    """Notes the shapes that it is called with, and takes not all of them."""

    def __init__(self, refused: Any) -> None:
        super().__init__()
        self.refused, self.shapes = refused, []

    def forward(
        self, x: Any, timesteps: Any, context: Any, mask: Any = None, control: Any = None, **kwargs: Any
    ) -> Any:
        audio = kwargs.get("audio")
        found = [tuple(one.shape) for one in (x, timesteps, context, mask, audio) if one is not None]
        if self.refused(found):
            raise RuntimeError("no such sizes")
        assert control is None
        self.shapes.append(found)


def shapes(refused: Any, *given: Any, batches: Batches = "varied", **more: Any) -> Any:
    model = Calls(refused)
    described = json.loads(json.dumps(OuterCall.of(model, ModelCall(given, more)).to_json()))
    made = repeat(model, OuterCall.from_json(described), CPU, Recording(), Varying(batches))
    assert made == len(model.shapes)
    return model.shapes


def test_batch_sides_and_text_vary_together() -> None:
    mask = torch.ones(2, 7, dtype=torch.long)
    found = shapes(
        lambda _: False,
        torch.ones(2, 16, 8, 12),
        torch.ones(2),
        torch.ones(2, 7, 48),
        mask,
        control={"input": [object()]},
    )
    assert len(found) == 3
    for x, timesteps, context, masked in found:
        assert (x[1], context[2]) == (16, 48)
        assert {x[0]} == {timesteps[0]} == {context[0]} == {masked[0]} and context[1] == masked[1]
    assert len({x[2] * x[3] for x, *_ in found}) == len({context[1] for _, _, context, _ in found}) == 3


def test_a_batch_that_a_model_does_not_take_stays() -> None:
    found = shapes(lambda given: given[0][0] != 1, torch.ones(1, 16, 3, 8, 12), torch.ones(1), torch.ones(1, 7, 48))
    assert [x[0] for x, *_ in found] == [1, 1, 1] and len({x[2:] for x, *_ in found}) == 3


@pytest.mark.parametrize("image", [(16, 3, 8, 12), (16, 8, 12), (24, 64)])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_that_is_kept(image: tuple[int, ...], batch: int) -> None:
    found = shapes(
        lambda given: False, torch.ones(batch, *image), torch.ones(batch), torch.ones(batch, 7, 48), batches="kept"
    )
    assert {size[0] for one in found for size in one} == {batch}
    assert len({one[0][1:] for one in found}) == len({one[2][1] for one in found}) == 3


def test_sides_of_another_latent_stay_where_they_must() -> None:
    audio = torch.ones(1, 8, 9, 16)
    found = shapes(
        lambda given: given[-1][3] != 16, torch.ones(1, 16, 8, 12), torch.ones(1), torch.ones(1, 7, 48), audio=audio
    )
    assert len({one[-1][2] for one in found}) == 3


def test_a_frame_follows_its_video_where_sound_has_a_side_that_stays() -> None:
    """As MiniMax H3's first frame does, of which sound has two channels and its own length."""
    video, sound, frame = torch.ones(1, 24, 3, 16, 24), torch.ones(1, 32, 2, 13), torch.ones(1, 24, 1, 16, 24)
    found = shapes(
        lambda given: given[-1][2] != 2 or given[-2][3:] != given[0][3:] or given[-2][2] != 1,
        video, torch.ones(1), torch.ones(1, 7, 48), frame, audio=sound,
    )  # fmt: skip
    assert len({one[0][2:] for one in found}) == len({one[-1][3] for one in found}) == 3


def test_a_model_that_takes_nothing_else_shows_nothing() -> None:
    assert shapes(lambda given: True, torch.ones(1, 16, 8, 12), torch.ones(1), torch.ones(1, 7, 48)) == []


def test_whole_numbers_keep_their_values() -> None:
    given = torch.ones(1, 4, 8), torch.tensor([3, 5]), torch.rand(1, 2, 3)
    called = OuterCall.of(Calls(None), ModelCall(given, {"frame_rate": 25}))
    assert called.leaves == ([[1, 4, 8], None], [[2], [3, 5]], [[1, 2, 3], None], 25)


def test_timesteps_are_the_calls_and_others() -> None:
    """Streams may share one at an end of a sampling alone, and a model may have a row for each that there is."""
    times: list[float] = []

    class Timed(torch.nn.Module):
        def forward(self, x: Any, timesteps: Any) -> None:
            times.append(float(timesteps[0]))

    outer = OuterCall.of(Timed(), ModelCall((torch.ones(1, 16, 8, 12), torch.tensor([937.5])), {}))
    assert repeat(Timed(), OuterCall.from_json(json.loads(json.dumps(outer.to_json()))), CPU, Recording()) == 3
    assert times[0] == 937.5 and len({*times}) == 3


def test_what_belongs_to_the_image_keeps_to_its_sides() -> None:
    """Of stacked videos, a pose at half the resolution, a mask with a frame more, and sides told as numbers."""
    shapes: list[Any] = []

    class Model(torch.nn.Module):
        def forward(self, x: Any, stacked: Any, pose: Any, mask: Any, picture: Any, height: int) -> None:
            frames, *sides = x.shape[2:]
            assert stacked.shape[1:] == (2, 96, frames, *sides)
            assert [2 * one for one in pose.shape[3:]] == sides and mask.shape[2:] == (frames + 1, *sides)
            assert picture.shape[2] == height
            shapes.append((frames, *sides, height))

    given = ((1, 16, 3, 16, 24), (1, 2, 96, 3, 16, 24), (1, 16, 3, 8, 12), (1, 28, 4, 16, 24), (1, 16, 20, 22))
    model = Model()
    outer = OuterCall.of(model, ModelCall((*(torch.ones(shape) for shape in given), 20), {}))
    assert repeat(model, outer, CPU, Recording()) == 3
    assert all(len({*column}) == 3 for column in zip(*shapes, strict=True))


def kind(model: toy_blocks.Model, sizes: tuple[int, int, int, int] = CALL) -> KindCalls:
    inputs = toy_blocks.call(*sizes)
    with recording(repeated_blocks(model), toy_blocks.rules(), ("support",)) as found:
        model(*inputs, {})
    one = found.kinds[0]
    settings = {"device": "off", "scale": 0.5}
    options = {"heads": 2, "patches": {"x": [print]}, "cache": settings, "mixed": {"kept": settings}, "none": {}}
    outer = OuterCall.of(model, ModelCall(inputs, {"transformer_options": options}))
    assert outer.options == {"heads": 2, "cache": settings}
    made = KindCalls(one.names[0], one.form, tuple(one.records), outer, {}, ("support",))
    return KindCalls.from_json(json.loads(json.dumps(made.to_json())))


def test_one_call_is_enough_for_a_graph_of_all_sizes() -> None:
    import torch.fx.experimental._config as config

    model = toy_blocks.model()
    with torch.no_grad(), config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        captured = capture_kind(model, kind(model), CPU, toy_blocks.block_settings(), toy_blocks.rules())
    assert captured.signature.sizes.fits(((4, 99, 16), (4, 77, 16), (4, 16), (4, 16), (1, 176, 4)))
    assert not captured.signature.sizes.fits(((4, 99, 16), (4, 77, 16), (4, 16), (4, 16), (1, 175, 4)))


def test_a_graph_for_one_image_at_a_time_has_any_size() -> None:
    """Whatever size the one call has that shows it."""
    import torch.fx.experimental._config as config

    model = toy_blocks.model()
    called = replace(kind(model, (1, *CALL[1:])), ones=SizeOneDims(((0, 0), (1, 0), (2, 0), (3, 0)), ()))
    with torch.no_grad(), config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        captured = capture_kind(model, called, CPU, toy_blocks.block_settings(), toy_blocks.rules())
    for image, text in [(99, 77), (50, 7), (9, 1)]:
        found = ((1, image, 16), (1, text, 16), (1, 16), (1, 16), (1, image + text, 4))
        assert captured.signature.sizes.fits(found)
        assert not captured.signature.sizes.fits(
            ((2, image, 16), (2, text, 16), (2, 16), (2, 16), (1, image + text, 4))
        )


def test_what_cannot_be_captured_is_said() -> None:
    model = toy_blocks.model()
    asked = kind(model)
    with pytest.raises(TooSmallError, match="too few to gain"):
        capture_kind(
            model, asked, CPU, Settings(toy_blocks.block_settings().overrides, fewest=1000), toy_blocks.rules()
        )
    del model.doubles
    with pytest.raises(CaptureError, match=r"no block doubles\.0"):
        capture_kind(model, asked, CPU, toy_blocks.block_settings(), toy_blocks.rules())
