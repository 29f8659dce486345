"""What restores took, for lists of later processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from onegraph.graph_cache.disk import restore_times
from onegraph.graph_cache.disk.listing import id_of


def test_the_last_time_counts(tmp_path: Path) -> None:
    restore_times.remember(tmp_path, {"/a": 0.5, "/b": 0.25})
    restore_times.remember(tmp_path, {"/a": 0.75})
    assert restore_times.read(tmp_path) == {id_of("/b"): 0.25, id_of("/a"): 0.75}


def test_those_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_times, "_MOST", 2)
    for name in ("/a", "/b", "/a", "/c"):
        restore_times.remember(tmp_path, {name: 1.0})
    restore_times.remember(tmp_path, {"/d": 1.0})
    assert restore_times.read(tmp_path).keys() == {id_of("/c"), id_of("/d")}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "x", "b": null, "c": -1, "d": true, "e": 1e9}', "[" * 100_000])
def test_a_damaged_file_is_as_none(text: str, tmp_path: Path) -> None:
    restore_times.remember(tmp_path, {"/a": 1.0})
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert restore_times.read(tmp_path) == {}
    restore_times.remember(tmp_path, {"/a": 2.0})
    assert restore_times.read(tmp_path) == {id_of("/a"): 2.0}


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    restore_times.remember(tmp_path / "none", {"/a": 1.0})
    assert restore_times.read(tmp_path / "none") == {}
