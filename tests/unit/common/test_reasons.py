"""Every reason has a code of its own and a sentence."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from onegraph.common import reasons


def kinds(base: type[reasons.Reason] = reasons.Reason) -> list[type[reasons.Reason]]:
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]


def sample(hint: Any) -> Any:
    """A value of a fact's type."""
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) is tuple:
        return tuple(sample(one) for one in get_args(hint) if one is not ...)
    if hint is reasons.Reason or reasons.Reason in get_args(hint):
        return reasons.NoSuchWeight("out.2.bias")
    return {str: "a name", int: 2, float: 0.5, bool: True, float | None: 0.5}[hint]


def example(kind: type[reasons.Reason]) -> reasons.Reason:
    hints = get_type_hints(kind)
    return kind(**{field.name: sample(hints[field.name]) for field in dataclasses.fields(kind)})


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in kinds()]
    assert codes
    assert sorted(codes) == sorted(set(codes))


def test_a_code_is_the_classs_name_where_it_gives_no_other() -> None:
    assert (reasons.OutOfRange.code, reasons.WaitsADay.code) == ("out_of_range", "waits_a_day")
    assert reasons.PatchedBy.code == "patched"


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_reason_reads_as_a_sentence(kind: type[reasons.Reason]) -> None:
    reason = example(kind)
    assert reason.text == str(reason)
    assert len(reason.text) > 5
    assert not set("{}<>") & set(reason.text)
    facts = [field.name for field in dataclasses.fields(kind) if field.type in ("str", "Reason")]
    told = [name for name in facts if "a name" in reason.text or "out.2.bias" in reason.text]
    assert told == facts


def test_reasons_are_values() -> None:
    one, same = reasons.PatchedBy("FreeU", "output_block_patch"), reasons.PatchedBy("FreeU", "output_block_patch")
    assert one == same and hash(one) == hash(same)
    assert one != reasons.ReplacedBy("FreeU", "output_block_patch")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "another"  # type: ignore[misc]


def test_what_is_in_a_reason_reaches_no_terminal_as_it_is() -> None:
    assert reasons.NotAdmitted(reasons.PatchedBy("\x1b[31m", "\n"), "512").text == (
        "\\x1b[31m patches this model (\\n) (512)"
    )
