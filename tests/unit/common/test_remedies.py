"""Every reason that a user can meet on a node or on the page says what to do, or why nothing is to be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from onegraph.common import reasons, remedies
from onegraph.common.reasons import Reason
from onegraph.graph_cache.disk import report

from .test_reasons import example, kinds

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = ("pipelines", "sharing")  # given by diffusers' functions and by commands, which have no page
HANDS_ON = {reasons.NotAdmitted}  # what to do is what to do about the reason in it
SOURCES = [path for folder in ("host", "runtime", "compiler", "backends") for path in (ROOT / folder).rglob("*.py")]


def module_of(kind: type[Reason]) -> str:
    return kind.__module__.rpartition(".")[2]


NAMED = {name for path in SOURCES for name in re.findall(r"\breasons\.([A-Z]\w+)", path.read_text(encoding="utf-8"))}
SHOWN = [kind for kind in kinds() if module_of(kind) not in ELSEWHERE or kind.__name__ in NAMED]


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.code)
def test_every_code_has_a_remedy_or_says_it_itself(kind: type[Reason]) -> None:
    if kind in HANDS_ON:
        inner = reasons.OutOfRange("width", 4096, 64, 2048)
        assert remedies.remedy(kind(inner, "any size")) == remedies.remedy(inner) == "size_in_range"  # type: ignore[call-arg]
        return
    found = remedies.remedy_of(kind)
    assert found in remedies.NAMES | {remedies.SAID}
    assert remedies.remedy(example(kind)) == (None if found == remedies.SAID else found)


def test_a_class_is_in_the_table_once_and_every_name_has_a_sentence() -> None:
    listed = [kind for kinds_ in remedies.BY_REMEDY.values() for kind in kinds_]
    assert len(listed) == len({*listed})
    texts = json.loads((ROOT / "locales/en/main.json").read_text(encoding="utf-8"))["onegraph"]["remedies"]
    assert texts.keys() == remedies.NAMES | {"other"}
    nothing = {name for name, text in texts.items() if text.startswith("Nothing.")}
    assert nothing == {
        "sizes_come_again", "first_step", "eager_is_faster", "later_run", "compiled_anew", "image_is_right",
        "not_served", "quarantined",
    }  # fmt: skip


def test_sizes_that_a_block_graph_does_not_serve_are_promised_none() -> None:
    assert remedies.remedy(reasons.BlockSizes("DoubleStreamBlock")) == "image_is_right"


def test_every_state_of_a_graph_on_the_page_has_a_remedy() -> None:
    """What a list may say of an entry: why it is not loaded, and why nothing here can use it."""
    untrusted = {kind.code for kind in kinds(reasons.Untrusted)}
    damaged = {kind.code for kind in kinds(reasons.Damaged)}
    others = {"quarantined", "made_for_another", "checkpoint_gone", "newer_manifest", "older_manifest"}
    assert remedies.sentences("graphRemedies").keys() == untrusted | others | {"damaged"}
    assert {report.remedy_of(code) for code in damaged} == {"damaged"}
    for code in untrusted | others:
        assert report.remedy_of(code) == code


def test_commands_have_the_sentences_by_code() -> None:
    assert remedies.sentences()[remedies.remedy_of_code("out_of_range") or ""].startswith("Choose a size within")
    assert {remedies.remedy_of_code(code) for code in ("paged_weights", "no_such_code")} == {None}
