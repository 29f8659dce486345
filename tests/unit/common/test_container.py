"""Limits of a container, read from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from onegraph.common import container, memory

GIB = 1 << 30


def group(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("limit", "left"), [("max\n", None), (f"{4 * GIB}\n", 2 * GIB), (f"{GIB}\n", 0), ("nonsense\n", None)]
)
def test_memory_left_counts_the_cache_that_gives_way(limit: str, left: int | None, tmp_path: Path) -> None:
    stat = f"anon {GIB}\ninactive_file {GIB}\nactive_file 7\n"
    found = group(tmp_path, memory_max=limit, memory_current=f"{3 * GIB}\n", memory_stat=stat)
    assert container.memory_left(found) == left


def test_without_such_files_there_is_no_limit(tmp_path: Path) -> None:
    assert container.memory_left(tmp_path) is None
    assert container.cores(tmp_path) >= 1


@pytest.mark.parametrize(("text", "cores"), [("100000 100000\n", 1), ("50000 100000\n", 1), ("900000 1000\n", None)])
def test_a_quota_of_the_cores_counts(text: str, cores: int | None, tmp_path: Path) -> None:
    usable = container.cores(tmp_path)
    assert container.cores(group(tmp_path, cpu_max=text)) == (usable if cores is None else cores)


def test_a_containers_limit_counts_as_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(container, "memory_left", lambda: 12345)
    assert memory.available_bytes(cpu) == 12345
    monkeypatch.setattr(container, "memory_left", lambda: None)
    assert memory.available_bytes(cpu) > GIB
