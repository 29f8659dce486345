"""Reasons survive a file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from onegraph.common import reasons
from onegraph.common.stored_reasons import from_json, to_json

STORED = [
    reasons.CompileFailed("The compiler said no."),
    reasons.FirstUseFailed(reasons.TooFarFromEager(0.3, 0.01)),
    reasons.InputLength("x", (1, 2), 2, 3),
    reasons.WaitsForChange(reasons.SpotCheckFailed(reasons.NotFinite()), ("torch", "host")),
    reasons.SigningKeyRefused("open"),
]


@pytest.mark.parametrize("reason", STORED, ids=lambda reason: reason.code)
def test_a_reason_is_read_as_written(reason: reasons.Reason) -> None:
    assert from_json(json.loads(json.dumps(to_json(reason)))) == reason


WRONG = [
    None, [], {}, {"code": 1}, {"code": "nothing_known"}, {"code": "compile_failed"},
    {"code": "compile_failed", "detail": []},
    {"code": "first_use_failed", "because": {"code": "nothing_known"}}, {"code": "first_use_failed", "because": "x"},
    {"code": "reason"}, {"code": "__class__"},
]  # fmt: skip


@pytest.mark.parametrize("data", WRONG, ids=str)
def test_what_is_no_reason_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(data)


def test_every_fact_has_a_type_that_can_be_stored() -> None:
    def below(cls: type[reasons.Reason]) -> list[type[reasons.Reason]]:
        return [one for child in cls.__subclasses__() for one in (child, *below(child))]

    known = ("str", "int", "float", "bool", "Reason", "tuple[", "Literal[", "float | None")
    facts = {
        f"{cls.__name__}.{field.name}": str(field.type)
        for cls in below(reasons.Reason)
        for field in dataclasses.fields(cls)
    }
    assert facts
    assert {name: kind for name, kind in facts.items() if not kind.startswith(known)} == {}
