from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from onegraph.graph_cache import model_hash


def safetensors(path: Path, size: int, header: dict[str, object] | None = None) -> Path:
    text = json.dumps(header or {"a": 1}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return path


def test_equal_files_have_equal_hashes_anywhere(tmp_path: Path) -> None:
    a, b = safetensors(tmp_path / "a.safetensors", 1000), safetensors(tmp_path / "b.safetensors", 1000)
    assert model_hash.hash_file(a) == model_hash.hash_file(b)
    assert len(model_hash.hash_file(a)) == 12


@pytest.mark.parametrize("change", ["header", "size", "start", "end"])
def test_a_change_shows(change: str, tmp_path: Path) -> None:
    size = 20_000_000
    before = model_hash.hash_file(safetensors(tmp_path / "a", size))
    if change == "header":
        path = safetensors(tmp_path / "b", size, {"a": 2})
    elif change == "size":
        path = safetensors(tmp_path / "b", size + 1)
    else:
        path = safetensors(tmp_path / "b", size)
        data = bytearray(path.read_bytes())
        data[100 if change == "start" else -1] ^= 1
        path.write_bytes(data)
    assert model_hash.hash_file(path) != before


def test_the_memo_notices_an_overwritten_file(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a", 1000)
    before = model_hash.hash_file(path)
    safetensors(path, 1000, {"a": 2})
    os.utime(path, ns=(1, 1))
    assert model_hash.hash_file(path) != before


def test_a_link_is_the_file_it_points_to(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "a", 1000)
    (tmp_path / "link").symlink_to(path)
    assert model_hash.hash_file(tmp_path / "link") == model_hash.hash_file(path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_files_of_other_formats_have_a_hash_too(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    assert len(model_hash.hash_file(tmp_path / "a.ckpt")) == 12
