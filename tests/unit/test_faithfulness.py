"""The published table has a row for every case of the matrix, and every failure that others' users reported."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from support.dit_matrix import judge as families
from support.dit_matrix.table import CASES as OF_FAMILIES
from support.matrix.judge import Row, name_of, problems
from support.matrix.table import CASES
from support.models.dits import DITS

ROOT = Path(__file__).parents[2]
# Of other compilers' users, in a ComfyUI workflow. What is about pipelines is in tests/pipelines.
REPORTED = (
    "onediff #708", "onediff #971", "onediff #849", "onediff #848", "onediff #818", "onediff #779", "onediff #993",
    "onediff #857", "onediff #936", "onediff #997", "ComfyUI #6415", "ComfyUI #9289", "KJNodes #131", "KJNodes #133",
    "KJNodes #151", "KJNodes #289", "KJNodes #292", "ComfyUI_TensorRT #10", "ComfyUI_TensorRT #42", "WaveSpeed #18",
)  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> Any:
    return importlib.import_module("faithfulness")


def test_the_published_table_has_every_case(tool: Any) -> None:
    page = (ROOT / "docs" / "faithfulness.md").read_text()
    shown = re.findall(r"^\| ([^|]+) \| (inductor|oneflow) \|", page.partition(tool.BEGIN)[2], re.MULTILINE)
    assert shown == [(case.name, backend) for case in CASES for backend in case.backends]
    assert len(shown) >= 60


def test_the_published_table_of_families_has_every_case(tool: Any) -> None:
    page = (ROOT / "docs" / "faithfulness.md").read_text().partition(tool.BEGIN_FAMILIES)[2].partition(tool.END)[0]
    shown = []
    for part in page.split("### ")[1:]:
        family, *lines = part.splitlines()
        shown += [(family, line.split(" | ")[0].removeprefix("| ")) for line in lines if line.count("|") == 9][2:]
    assert shown == [(case.family, case.name) for case in OF_FAMILIES]
    assert len({*shown}) == len(shown) >= 240
    assert {case.family for case in OF_FAMILIES} == {*DITS}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, 0),
        ({"relative_l2": 2e-5}, 1),
        ({"relative_l2": float("nan")}, 1),
        ({"max_abs_diff_255": 2}, 1),
        ({"effect": 1e-4}, 1),
        ({"compiled_calls": 0}, 1),
        ({"eager_calls": 1, "reasons": ["block_sizes"]}, 2),
    ],
)
def test_what_is_wrong_with_a_row_of_a_family(changed: dict[str, Any], wrong: int, tool: Any) -> None:
    case = next(case for case in OF_FAMILIES if case.promised == "all" and case.changes)
    right = {
        "family": case.family, "case": case.name, "compiled_calls": 5, "kinds": 2, "eager_calls": 0, "reasons": [],
        "relative_l2": 4e-7, "max_abs_diff_255": 0, "effect": 0.2,
    }  # fmt: skip
    row = families.Row(**{**right, **changed})
    assert len(list(families.problems(case, row))) == wrong
    if not changed:
        assert tool.family_cells(right) == f"| {case.name} | 5 | 2 | 0 |  | 4e-07 | 0 | 2.0e-01 |"


def test_cases_have_names_of_their_own() -> None:
    names = [name_of(case) for case in CASES]
    assert len({*names}) == len(names)


def test_every_reported_failure_is_a_case() -> None:
    assert set(REPORTED) <= {report for case in CASES for report in case.reports}


def test_a_row_becomes_a_line_of_the_page(tool: Any) -> None:
    row = {
        "case": "LoRA: before", "backend": "inductor", "compiled_calls": 2, "eager_calls": 1, "reasons": ["patched"],
        "max_abs_diff_255": 1, "effect_255": None, "compiled_promised": True,
    }  # fmt: skip
    assert tool.cells(row, "before", ("KJNodes #1",)) == "| before | inductor | 2 | 1 | `patched` | 1 |  | KJNodes #1 |"
    assert tool.written(f"a\n{tool.BEGIN}\nold\n{tool.END}\nz\n", "new") == f"a\n{tool.BEGIN}\nnew\n{tool.END}\nz\n"
    with pytest.raises(KeyError):
        tool.tables([row], CASES)


ALL = next(case for case in CASES if case.promised == "all" and case.changes)
SOME = next(case for case in CASES if case.promised == "some")
NONE = next(case for case in CASES if case.promised == "none" and case.codes)


@pytest.mark.parametrize(
    ("case", "changed", "wrong"),
    [
        (ALL, {}, 0),
        (ALL, {"max_abs_diff_255": 3}, 1),
        (ALL, {"effect_255": 20}, 1),
        (ALL, {"compiled_calls": 0}, 1),
        (ALL, {"compiled_calls": 0, "eager_calls": 3, "reasons": ["no_graph"]}, 3),
        (SOME, {"eager_calls": 1, "reasons": sorted(SOME.codes)}, 0),
        (SOME, {"eager_calls": 0, "reasons": []}, 2),
        (SOME, {"eager_calls": 1, "reasons": ["no_graph"]}, 1),
        (NONE, {"compiled_calls": 0, "eager_calls": 3, "reasons": sorted(NONE.codes)}, 0),
        (NONE, {"reasons": sorted(NONE.codes)}, 1),
    ],
)
def test_what_is_wrong_with_a_row(case: Any, changed: dict[str, Any], wrong: int) -> None:
    right = {"compiled_calls": 3, "eager_calls": 0, "reasons": [], "max_abs_diff_255": 1, "effect_255": 50}
    row = Row(case=name_of(case), backend="inductor", compiled_promised=True, **{**right, **changed})
    assert len(list(problems(case, row))) == wrong
