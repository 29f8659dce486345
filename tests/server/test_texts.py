"""Generate Text in the real server, with a real tokenizer: the same words by graphs, in the next process, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from headless import host, media, server
from support.comfyui.installation import environment_of

pytestmark = pytest.mark.full
WORDS = ("a lighthouse at dusk", "an old map of a city that nobody has ever seen, drawn with a very fine brush")


def test_a_text_is_written_by_graphs_in_the_next_process_too(tmp_path: Path) -> None:
    base, environment = server.prepare_base(tmp_path / "comfyui"), environment_of(tmp_path / "home")
    asked = [(words, length, seed) for words in WORDS for length, seed in ((24, 1), (40, 2))]
    with server.running(base, host.comfyui_path(), env=environment) as first:
        wanted = [first.run(media.text(False, *one)).written for one in asked]
        assert all(len(one) == 1 and one[0] for one in wanted) and len({one[0] for one in wanted}) == len(asked)
        found = [first.run(media.text(True, *one)) for one in asked]
        assert [one.written for one in found] == wanted
        assert (first.status()["compiles"], first.status()["eager_calls"]) == (2, 6), first.status()["reasons"]
        assert found[-1].text("text").startswith("generation: block graphs: 3 of 3 blocks compiled")
    with server.running(base, host.comfyui_path(), env=environment) as second:
        assert [second.run(media.text(True, *one)).written for one in asked] == wanted
        status = second.status()
        assert (status["compiles"], status["eager_calls"]) == (0, 0), status
