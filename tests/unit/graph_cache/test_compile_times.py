"""How long compiles took, in a file that nobody may rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onegraph.graph_cache.compile_times import CompileTimes


def test_the_latest_compile_of_a_category_is_known(tmp_path: Path) -> None:
    times = CompileTimes(tmp_path / "home" / "times.json")
    times.remember("unet", {"starting": 9, "compiling": 90})
    times.remember("unet", {"starting": 3, "compiling": 30})
    times.remember("decoder", {"starting": 1, "compiling": 9})
    assert CompileTimes(tmp_path / "home" / "times.json").of("unet") == {"starting": 3, "compiling": 30}
    assert times.of("decoder") == {"starting": 1, "compiling": 9}
    assert times.of("encoder") == {}
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["times.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"unet": 3}', '{"unet": {"compiling": "x", "starting": -1, "checking": 1e300}}']
)
def test_a_damaged_file_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    assert CompileTimes(file).of("unet") == {}
    CompileTimes(file).remember("unet", {"compiling": 7.0})
    assert CompileTimes(file).of("unet") == {"compiling": 7.0}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder")
    CompileTimes(home / "times.json").remember("unet", {"compiling": 7.0})
    assert home.read_text() == "no folder"


def test_a_pipe_in_its_place_holds_up_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "times.json")
    times = CompileTimes(tmp_path / "times.json")
    assert times.of("unet") == {}
    times.remember("unet", {"compiling": 7.0})
    assert times.of("unet") == {"compiling": 7.0}
