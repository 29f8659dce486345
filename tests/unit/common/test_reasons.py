"""Every reason has a code of its own and a sentence."""

from __future__ import annotations

from onegraph.common import messages, reasons


def kinds(base: type[reasons.Reason] = reasons.Reason) -> list[type[reasons.Reason]]:
    return [kind for child in base.__subclasses__() for kind in (child, *kinds(child))]


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in kinds()]
    assert codes
    assert sorted(codes) == sorted(set(codes))


def test_every_reason_has_a_sentence() -> None:
    without = [kind.__name__ for kind in kinds() if messages.text.dispatch(kind) is messages.text.dispatch(object)]
    assert without == []
