"""A video VAE from a file, by Load VAE: pictures are encoded and decoded as a video, whole and in tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import host, media, server
from support.comfyui.installation import environment_of

from .conftest import difference

pytestmark = pytest.mark.full


def test_a_video_is_decoded_by_graphs_in_the_next_process_too(tmp_path: Path) -> None:
    base, environment = server.prepare_base(tmp_path / "comfyui"), environment_of(tmp_path / "home")
    media.write_video_vae(base / "models/vae" / media.VIDEO_VAE)
    choices = ({}, {"side": 96}, {"tiles": True, "side": 96})
    with server.running(base, host.comfyui_path(), env=environment) as first:
        wanted = [first.run(media.video(False, **choice)) for choice in choices]
        assert all(len(one.images) == media.FRAMES for one in wanted)
        assert difference(wanted[0], first.run(media.video(True))) == 0
        assert first.status()["compiles"] and not first.status()["compiled_calls"]
    with server.running(base, host.comfyui_path(), env=environment) as second:
        for choice, reference in zip(choices, wanted, strict=True):
            assert difference(reference, second.run(media.video(True, **choice))) <= 1
            assert second.status()["runs"]["video:decoder"]["text"].startswith("block graphs: ")
        status = second.status()
        assert (status["compiles"], status["reasons"]) == (0, {}), status["reasons"]
