"""Where the Inductor backend keeps what its compiles share."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from onegraph.backends.inductor import target, toolchain
from onegraph.backends.inductor.toolchain import Toolchain


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_torch_of_another_layout_is_left_alone(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import codecache

    usual = codecache.CppBuilder
    monkeypatch.delattr(usual, "get_target_file_path")
    with Toolchain(tmp_path).in_use():
        assert codecache.CppBuilder is usual


def test_another_cpu_shares_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home may be on a network; code for this very CPU crashes on an older one."""
    here = Toolchain.of_user()._folder
    assert here.is_relative_to(cache)
    monkeypatch.setattr(target, "_cpu_features", lambda: "sse2")
    assert Toolchain.of_user()._folder not in (here, *here.parents)


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    now = time.time()
    for number, name in enumerate(("old", "middle", "new")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").write_bytes(bytes(1000))
        for path in (folder / "file", folder):
            os.utime(path, (now, now - 10_000 * (3 - number)))
    toolchain.trim(tmp_path, most=2500)
    assert {path.name for path in tmp_path.iterdir()} == {"middle", "new"}
    toolchain.trim(tmp_path, most=0, spare_seconds=15_000)  # somebody may be using what is new
    assert {path.name for path in tmp_path.iterdir()} == {"new"}
    toolchain.trim(tmp_path / "nowhere", most=0)
