"""Who says how many bytes graphs may take."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onegraph.graph_cache.disk import budget
from onegraph.graph_cache.disk.budget import DEFAULT, SETTINGS_FILE, VARIABLE, Budget
from onegraph.graph_cache.store import Store


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_environment_wins_over_the_setting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store.disk.allowance == Budget(DEFAULT, "default")
    budget.change(store.home, 5)
    assert store.disk.allowance == Budget(5, "setting")
    budget.change(store.home, None)
    assert store.disk.allowance == Budget(None, "setting")
    monkeypatch.setenv(VARIABLE, "1GiB")
    assert store.disk.allowance == Budget(1 << 30, "environment")
    monkeypatch.setenv(VARIABLE, "0")
    assert store.disk.allowance == Budget(None, "environment")
    monkeypatch.setenv(VARIABLE, "nonsense")  # as `onegraph doctor` says
    assert store.disk.allowance == Budget(DEFAULT, "default")


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "{}x", '{"disk_budget_bytes": 0}', '{"disk_budget_bytes": -1}', '{"disk_budget_bytes": "x"}',
     '{"version": 2, "disk_budget_bytes": 5}', '{"folder": "/etc"}', "[" * 100_000, " " * 70_000 + "{}"],
)  # fmt: skip
def test_settings_that_are_none_count_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(text)
    assert budget.current(tmp_path) == Budget(DEFAULT, "default")


def test_a_user_without_a_folder_gets_one(tmp_path: Path) -> None:
    budget.change(tmp_path / "a" / "b", 7)
    assert budget.current(tmp_path / "a" / "b").bytes == 7
    with pytest.raises(OSError):
        budget.change(tmp_path / "a" / "b" / SETTINGS_FILE, 7)


def test_threads_that_change_it_at_once(tmp_path: Path) -> None:
    """As two pages do. Whoever writes last wins, and nobody fails."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: budget.change(tmp_path, 1 + number), range(80)))
    assert budget.current(tmp_path).bytes in range(1, 81)
    assert [path.name for path in tmp_path.iterdir()] == [SETTINGS_FILE]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_process_that_is_killed_while_it_changes_it(tmp_path: Path) -> None:
    """What is read is what one of them wrote, whole; what is left behind does not hinder the next one."""
    values = (10**3, 10**15)
    budget.change(tmp_path, values[0])
    for number in range(20):
        child = os.fork()
        if child == 0:
            while True:
                for value in values:
                    budget.change(tmp_path, value)
        time.sleep(0.002 + 0.001 * number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert budget.current(tmp_path) in [Budget(value, "setting") for value in values]
    budget.change(tmp_path, 7)
    assert budget.current(tmp_path).bytes == 7
