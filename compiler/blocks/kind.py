"""A kind of block as the server orders its graph: which block it is, how it is called, how to see it called more."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...common.errors import CaptureError, TooSmallError
from ...common.log import logger
from ...signature import call_tree
from ...signature.call_rules import Attention
from ...signature.call_tree import JSON, Form, NumberForm
from ...signature.modulation import given_in
from ...signature.size_one_dims import SizeOneDims
from ...signature.size_rules import Sizes
from ..code.fingerprint import Rules
from . import outer_call
from .capture import BlockCalls, CapturedBlock, Settings, Watching, capture_block
from .other_sizes import Frames, Varying
from .outer_call import OuterCall
from .records import recording
from .repeated import repeated_blocks

log = logger("compiler")


@dataclass(frozen=True)
class KindCalls:
    """The calls of a kind that a model made, as the compiling process gets them.

    Attributes:
        block: the name of one of the blocks.
        form: of its arguments by name.
        seen: sizes of the leaves, of some calls.
        outer: the model's own call in which they were seen.
        options: plain values among the model's options.
        packages: whose objects are taken apart by their fields.
        attention: whether the graph shall have the attention in it, or call a function.
        ones: by which they differ from calls of another graph of their form.
        served: sizes that an earlier graph of the kind serves, whose rules were too narrow.
    """

    block: str
    form: Form
    seen: tuple[Sizes, ...]
    outer: OuterCall
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    attention: Attention = "captured"
    ones: SizeOneDims | None = None
    served: tuple[Sizes, ...] = ()

    def to_json(self) -> JSON:
        """Return everything, JSON-ready."""
        return {
            "block": self.block,
            "form": call_tree.to_json(self.form),
            "seen": [[*map(list, sizes)] for sizes in self.seen],
            "outer": self.outer.to_json(),
            "options": {**self.options},
            "packages": [*self.packages],
            "attention": self.attention,
            "ones": None if self.ones is None else self.ones.to_json(),
            "served": [[*map(list, sizes)] for sizes in self.served],
        }

    @classmethod
    def from_json(cls, data: JSON) -> KindCalls:
        """Read what `to_json` made, which comes from this process' own parent."""
        packages = tuple(data["packages"])
        return cls(
            data["block"],
            call_tree.from_json(data["form"], packages),
            _sizes(data["seen"]),
            OuterCall.from_json(data["outer"]),
            data["options"],
            packages,
            data["attention"],
            None if data["ones"] is None else SizeOneDims.from_json(data["ones"]),
            _sizes(data["served"]),
        )


def _sizes(data: JSON) -> tuple[Sizes, ...]:
    return tuple(tuple(map(tuple, sizes)) for sizes in data)


def capture_kind(
    model: torch.nn.Module,
    kind: KindCalls,
    device: torch.device,
    settings: Settings,
    rules: Rules,
    watching: Watching = contextlib.nullcontext,
) -> CapturedBlock:
    """Call a model at other sizes, and capture one of its blocks for all sizes that these calls admit.

    Args:
        model: of zeros or any other weights.
        watching: see `capture_block`.

    Raises:
        CaptureError: see `capture_block`.
        TooSmallError: no graph is worth it.
    """
    blocks = repeated_blocks(model)
    if kind.block not in blocks:
        raise CaptureError(f"The model has no block {kind.block} in the compiling process; it runs uncompiled instead.")

    def captured_for(calls: BlockCalls) -> CapturedBlock:
        return capture_block(settings.plain(blocks[kind.block]), calls, device, settings, watching)

    calls = _more_calls(model, kind, device, rules, "varied")
    try:
        captured = captured_for(calls)
    except CaptureError:
        counted = _counted_by(calls, kind.seen[0])
        if not counted:
            raise
        more = _more_calls(model, kind, device, rules, "kept")
        calls = replace(calls, records=calls.records + more.records, results=calls.results + more.results)
        for numbers in counted:
            with contextlib.suppress(CaptureError):
                captured = captured_for(_with_the_same(calls, numbers, kind.seen[0]))
                break
        else:
            raise
    if captured.operations < settings.fewest:
        raise TooSmallError(f"a block of {captured.operations} operations, too few to gain from a graph")
    return captured


def _more_calls(
    model: torch.nn.Module, kind: KindCalls, device: torch.device, rules: Rules, frames: Frames
) -> BlockCalls:
    """The calls of a kind that were seen, and those that a model makes at other sizes."""
    blocks = {kind.block: repeated_blocks(model)[kind.block]}
    times = 2 if call_tree.functions_in(kind.form) else 1  # they fill what the next call takes from
    given = [one.module for one in given_in(kind.form)]
    with torch.no_grad(), recording(blocks, rules, kind.packages, given=given) as recorded:
        made = outer_call.repeat(model, kind.outer, device, recorded, Varying(frames=frames), times)
        if kind.ones is not None:  # by a batch of 1, perhaps, of which the calls above have one
            made += outer_call.repeat(model, kind.outer, device, recorded, Varying("kept", frames), times)
    same = next((one for one in recorded.kinds if one.form == kind.form), None)
    records = [*kind.seen, *(same.records if same is not None else ())]
    if kind.ones is not None:
        records = [sizes for sizes in records if kind.ones.fit(sizes)]
    log.debug("%s: %d sizes from %d further calls", kind.block, len(records), made)
    results = () if same is None else tuple(same.results.items())
    return BlockCalls(kind.form, tuple(records), kind.options, kind.packages, kind.attention, results, kind.served)


def _counted_by(calls: BlockCalls, asked: Sizes) -> list[tuple[int, ...]]:
    """The leaves by which code may count, one alone first: whole numbers that are not the same in all calls."""
    numbers = [n for n, one in enumerate(call_tree.leaf_forms(calls.form)) if isinstance(one, NumberForm)]
    varying = [n for n in numbers if any(sizes[n] != asked[n] for sizes in (*calls.records, *calls.served))]
    return [*((n,) for n in varying), tuple(varying)] if len(varying) > 1 else [(n,) for n in varying]


def _with_the_same(calls: BlockCalls, numbers: Sequence[int], asked: Sizes) -> BlockCalls:
    """Those of some calls that have the numbers of one: code that counts by them has a graph for each."""

    def alike(some: Sequence[Sizes]) -> tuple[Sizes, ...]:
        return tuple(sizes for sizes in some if all(sizes[n] == asked[n] for n in numbers))

    return replace(calls, records=alike(calls.records), served=alike(calls.served))
