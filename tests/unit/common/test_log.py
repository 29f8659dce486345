"""Each line of the log begins with whose it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onegraph.common.log import logger

ROOT = Path(__file__).parents[3]


def test_lines_have_the_prefix(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("host")
    log.warning("100 of %s", "it")
    log.warning("100% of it")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    assert {record.name for record in caplog.records} == {"onegraph.host"}
    assert [record.getMessage() for record in caplog.records] == [
        "OneGraph: 100 of it",
        "OneGraph: 100% of it",
        "OneGraph: failed",
    ]
    assert caplog.records[-1].exc_info is not None


def test_no_module_has_another_logger() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pack = [name for name in tracked.split() if not name.startswith(("tests/", "tools/", "benchmarks/", "examples/"))]
    others = [name for name in pack if 'getLogger("' in (ROOT / name).read_text(encoding="utf-8")]
    assert pack and not others
