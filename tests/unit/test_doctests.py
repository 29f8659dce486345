"""Examples in docstrings, each of which runs as it is written."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("backends", "cli", "common", "compiler", "graph_cache", "host", "runtime", "signature")
FEWEST = 15  # examples


def modules() -> list[str]:
    """The modules that have examples."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if ">>> " in file.read_text()]
    return [f"onegraph.{name.removesuffix('.__init__')}" for name in names]


def examples(module: str) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]


@pytest.mark.parametrize("module", modules())
def test_examples_are_right(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    report: list[str] = []
    for test in examples(module):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 0


def test_there_are_many_examples() -> None:
    assert sum(len(test.examples) for module in modules() for test in examples(module)) >= FEWEST


def test_a_wrong_example_fails() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner().run(wrong, out=lambda text: None).failed == 1
