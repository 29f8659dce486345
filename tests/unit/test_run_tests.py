"""What a run of all layers says at its end."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import run_tests

TESTS = """
import pytest

def test_right(): pass

@pytest.mark.parametrize("number", [1, 2])
def test_wrong(number):
    assert number == 2, "it is one\\nand not two"

@pytest.fixture
def lacking(): raise OSError("no such thing")

def test_without(lacking): pass
"""


def test_what_did_not_pass_is_told_in_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    report = tmp_path / "some.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(tmp_path / "none.ini"), f"--junitxml={report}"]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    ended = subprocess.run([*command, "test_some.py"], cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == 1
    assert run_tests.counts(report) == (2, 2, 0)
    assert run_tests.unpassed(report) == [
        "test_some::test_wrong[1]: AssertionError: it is one",
        'test_some::test_without: failed on setup with "OSError: no such thing"',
    ]
    assert run_tests.unpassed(tmp_path / "none.xml") == []


def test_only_a_share_of_a_layer_may_have_no_test() -> None:
    none = run_tests.NO_TEST_COLLECTED
    assert run_tests.judge("unit", none, 0, 0, 0) == "ran no test"
    assert run_tests.judge("unit", none, 0, 0, 0, shared=True) == ""
    assert run_tests.judge("unit", -9, 0, 0, 0, shared=True) == "killed by signal 9"


@pytest.mark.skipif(sys.platform == "win32", reason="there, nothing is ended")
def test_a_layer_ends_when_it_prints_nothing_however_long_it_takes(tmp_path: Path) -> None:
    environ = dict(os.environ)
    with (tmp_path / "log").open("wb") as out:
        code, _ = run_tests.run_process(["sleep", "600"], environ, out, quiet=0.2)
        assert code == -signal.SIGABRT
        talking = "for one in $(seq 60); do echo $one; sleep 0.1; done"
        code, _ = run_tests.run_process(["sh", "-c", talking], environ, out, quiet=5.0)
    assert code == 0
    assert (tmp_path / "log").read_text().split() == [str(one) for one in range(1, 61)]


def test_shares_are_all_tests_and_none_twice(request: pytest.FixtureRequest) -> None:
    plugin = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))

    def left(text: str) -> list[str]:
        config = SimpleNamespace(getoption=lambda name: plugin.share(text), hook=MagicMock())
        items = [SimpleNamespace(nodeid=f"test_{n}", path=Path(__file__), add_marker=MagicMock()) for n in range(100)]
        plugin.pytest_collection_modifyitems(config, items)
        return [item.nodeid for item in items]

    shares = [left(f"{number}/3") for number in (1, 2, 3)]
    assert sorted(itertools.chain(*shares)) == sorted(left("1/1"))
    assert len(left("1/1")) == 100 and all(len(share) > 20 for share in shares)
    with pytest.raises(ValueError, match="4/3 is none of 3 shares"):
        plugin.share("4/3")
