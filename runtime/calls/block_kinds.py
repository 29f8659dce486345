"""The kinds of blocks that a run meets: their graphs are restored at their first calls, or compiled after the call."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ...common import reasons
from ...common.errors import in_brief
from ...common.log import logger
from ...common.reasons import Reason
from ...common.refused import Refused
from ...common.tensor_meta import dtype_name
from ...compiler.blocks.kind import KindCalls
from ...compiler.blocks.outer_call import ModelCall, OuterCall, plain_options
from ...signature.call_rules import Attention
from ...signature.call_tree import Leaf, UnknownArgumentError, flatten, functions_of, rebuild, to_json, watched
from ...signature.parameters import called, options_of
from ...signature.size_one_dims import SizeOneDims
from ...signature.size_rules import Sizes, sizes_of
from ...signature.views import VIEWED
from ..graphs.faithfulness import ROUNDING, relative_l2
from ..graphs.loaded_graph import LoadedGraph
from ..obtain.registry import registry
from ..request import Request
from .block_kind import KindGraph, KindOfCall, Matched
from .client import BlockClient
from .obtaining import obtain_all
from .requests import block_request
from .run import Run
from .run_block import RunBlock

log = logger("runtime")

MOST_KINDS = 8  # of blocks of one architecture, so that calls that differ each time cannot compile without end
MOST_LEARNED = 3  # further graphs of one kind, each for sizes that the rules of the one before do not admit
_ALIKE = 1e-3  # relative L2 of what a block returns alone and in its call: the same operations, if not bits
_MOST_SEEN = 8  # sizes of one kind that its compile is told


class Differing(NamedTuple):
    """How a call differs from those of the kinds that are known.

    Attributes:
        ones: by sizes of 1 from a kind of its form; None: it does not.
        narrow: the last kind of its form that was made, if its rules of sizes do not admit the call; else None.
    """

    ones: SizeOneDims | None = None
    narrow: KindGraph | None = None


def choose(
    kinds: list[KindGraph], named: Mapping[str, Any], attention: Attention
) -> tuple[KindGraph, Matched] | Differing:
    """Choose the kind of a call, which is put first; or tell how the call differs from those of all kinds.

    Args:
        named: the block's arguments.
        attention: how the call attends.
    """
    ones: SizeOneDims | None = None
    narrow: KindGraph | None = None
    waiting: tuple[KindGraph, Matched] | None = None
    for number, kind in enumerate(kinds):
        matched = kind.match(named) if kind.attention == attention else None
        if matched is None:
            continue
        outside_rules = matched.seen.outside_rules
        failed = kind.graph is None or kind.refusal is not None
        if matched.seen.ones is not None:  # of this form, and of another kind
            ones = matched.seen.ones
        elif (failed and kind.learned) or (outside_rules and kind.learned == MOST_LEARNED):
            waiting = kind, matched  # a graph that was made before may serve the call
        elif outside_rules:
            narrow = kind if narrow is None or narrow.learned < kind.learned else narrow
        else:
            if number:
                kinds.insert(0, kinds.pop(number))
            return kind, matched
    if waiting is not None and (narrow is not None or ones is None):
        return waiting
    return Differing(ones, narrow)


@dataclass
class _Pending:
    """A kind that is to be compiled when the call is over.

    Attributes:
        among: the kinds of its structure.
        block: the name of one of its blocks.
        like: a tensor of a call.
        options: plain values among the model's options.
        narrow: whose rules of sizes do not admit its calls; None: there is none.
        written: whether the block of the call under way wrote into a container that it is given; None: no call is.
        viewed: a copy of that call, where a view has opened it: the block may write into what it is given.
    """

    request: Request
    kind: KindGraph
    among: list[KindGraph]
    block: str
    like: torch.Tensor
    options: Mapping[str, Any]
    narrow: KindGraph | None
    seen: list[Sizes] = field(default_factory=list)
    written: Callable[[], bool] | None = None
    viewed: Mapping[str, Any] | None = None


def _wrong_view(
    block: torch.nn.Module, named: Mapping[str, Any], result: Callable[[], tuple[Any, Any]]
) -> Reason | None:
    """Why a view does not show what a block does: alone with what the view takes out, it returns and leaves the same.

    All graphs of the block, and what they are compared with, go by the view. Another ComfyUI may have other blocks.
    """
    try:
        (alone, left_alone), (its, left) = called(block, named), result()
        if _alike(alone, its) and (left is None or _alike(left_alone, left)):
            return None
    except Exception as error:  # of the block's
        log.debug("a block could not be called alone", exc_info=True)
        return reasons.CallFailed(type(error).__name__, in_brief(error, 120))
    return reasons.OtherResult("other values by itself", "those of its call")


def _copied(named: Mapping[str, Any], packages: Sequence[str]) -> Mapping[str, Any]:
    """A call with tensors of its own."""
    form, leaves = flatten(named, packages)
    tensors = [one.clone() if isinstance(one, torch.Tensor) else one for one in leaves]
    copied: Mapping[str, Any] = rebuild(form, tensors, options_of(named), functions_of(form, named))
    return copied


def _alike(found: Any, wanted: Any) -> bool:
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(_alike, found, wanted))
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(found) is type(wanted) and bool(found == wanted)
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    rounding = 2 * ROUNDING.get(wanted.dtype, 0.0)  # a view may attend in other parts: seen in bfloat16: 0.010
    return not found.numel() or relative_l2(found, wanted) < max(_ALIKE, rounding)


class Kinds:
    """The kinds of one run, by the architecture digests of their blocks."""

    def __init__(self, client: BlockClient, run: Run) -> None:
        self._client = client
        self._run_of = weakref.ref(run)
        self._kinds: dict[str, list[KindGraph]] = {}
        self._pending: list[_Pending] = []

    @property
    def _run(self) -> Run:
        run = self._run_of()
        assert run is not None  # whoever calls has it
        return run

    def of(self, architecture: str) -> list[KindGraph]:
        """The kinds of blocks of an architecture: whoever asks may put them in another order."""
        return self._kinds.setdefault(architecture, [])

    def __iter__(self) -> Iterator[KindGraph]:
        for kinds in self._kinds.values():
            yield from kinds

    def note(self, kind: KindGraph, named: Mapping[str, Any], leaves: Sequence[Leaf]) -> None:
        """Note one more call of a kind that is to be compiled; `settle` is to be called after it."""
        for one in self._pending:
            if one.kind is kind:
                one.written = watched(named, self._client.packages)
                one.viewed = _copied(named, self._client.packages) if VIEWED in named else None
                if len(one.seen) < _MOST_SEEN:
                    one.seen.append(sizes_of(leaves))

    def settle(self, block: torch.nn.Module, result: Callable[[], tuple[Any, Any]]) -> None:
        """Refuse a kind whose block wrote into what it was given: its graph would not. Or one whose view is wrong.

        Args:
            result: gives what the block returned for the call that was noted, see `View.open_result`.
        """
        for one in [*self._pending]:
            refusal: Reason | None = None
            if one.written is not None and one.written():
                refusal = reasons.BlockWrites(one.kind.name)
            elif one.viewed is not None:
                refusal = _wrong_view(block, one.viewed, result)
            if refusal is not None:
                one.kind.refusal = refusal
                self._pending.remove(one)
            one.written = one.viewed = None

    def instead(self, one: RunBlock, named: Mapping[str, Any]) -> None:
        """Compile the kind of a call in place of those of its block that wait for it, if some do."""
        waiting = [pending for pending in self._pending if pending.among is one.kinds]
        if not waiting or any(pending.kind.calls_functions for pending in waiting):
            return
        for pending in waiting:
            self._pending.remove(pending)
            one.kinds.remove(pending.kind)
        found = self.find(one, named, "captured", Differing())
        if not isinstance(found, Refused):
            self.note(found[0], named, found[1].leaves)
            for pending in self._pending:
                pending.written = pending.viewed = None  # the call is over

    def find(
        self, one: RunBlock, named: Mapping[str, Any], attention: Attention, differing: Differing
    ) -> tuple[KindGraph, Matched] | Refused:
        """Make the kind of a block's call that is none of the known ones; its graph is restored, if there is one.

        One that was restored may tell of the call that it is of yet another kind, whose graph is restored then.

        Args:
            one: whose known kinds it is added to.
            named: its arguments.
            attention: how the call attends.
        """
        while True:
            made = self._make(one, named, attention, differing)
            if isinstance(made, Refused):
                return made
            chosen = choose(one.kinds, named, attention)
            if not isinstance(chosen, Differing) or chosen == differing:
                return made if isinstance(chosen, Differing) else chosen
            differing = chosen

    def _make(
        self, one: RunBlock, named: Mapping[str, Any], attention: Attention, differing: Differing
    ) -> tuple[KindGraph, Matched] | Refused:
        try:
            form, leaves = flatten(named, self._client.packages)
        except UnknownArgumentError as error:
            return Refused(reasons.BlockArgument(str(error)))
        if len(one.kinds) >= MOST_KINDS:
            return Refused(reasons.TooManyKinds(MOST_KINDS))
        like = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
        if like is None:
            return Refused(reasons.NotPlainInputs())
        started = time.perf_counter()
        shapes = {"form": to_json(form), **({"attention": attention} if attention == "called" else {})}
        narrow = differing.narrow
        ones, learned = (differing.ones, 0) if narrow is None else (narrow.ones, narrow.learned + 1)
        if ones is not None:
            shapes["ones"] = ones.to_json()
        if learned:
            shapes["learned"] = learned
        name, dtype = type(one.skeleton).__name__, dtype_name(like.dtype)
        request = block_request(self._client, one.skeleton, one.architecture, shapes, dtype, like.device)
        obtained: LoadedGraph | Refused = request if isinstance(request, Refused) else self._obtained(request)
        kind = KindGraph(KindOfCall(name, form, tuple(self._client.packages), attention, ones, learned), obtained)
        one.kinds.insert(0, kind)
        if isinstance(obtained, LoadedGraph):
            self._run.report.blocks.note_graph(obtained, time.perf_counter() - started)
        elif isinstance(request, Request) and obtained.reason == reasons.BlockRecorded():
            options = plain_options(options_of(named))
            self._pending.append(_Pending(request, kind, one.kinds, one.name, like, options, narrow))
        matched = kind.match(named)
        return (kind, matched) if matched is not None else Refused(reasons.UnusualInputs())

    def _obtained(self, request: Request) -> LoadedGraph | Refused:
        """The graph, if there is one; `BlockRecorded` where one is to be compiled after this call."""
        self._client.requested(request)
        graph = registry().obtain(request, "eager", self._client.component.follow(request.label))
        if isinstance(graph, LoadedGraph) or self._client.when_missing == "eager":
            return graph
        compiles = registry().compiles
        refusal = compiles.refusal(request.slot) or compiles.failures.why_not(request)
        return refusal or Refused(reasons.BlockRecorded())

    def compile_pending(self, model: torch.nn.Module, outer: ModelCall | None) -> None:
        """Compile the kinds that a call has shown and nobody has. Raises the user's interrupt alone.

        Args:
            outer: what the model was called with; None: nobody knows.
        """
        pending, self._pending = [one for one in self._pending if not self._one_too_many(one)], []
        if not pending:
            return
        requests = self._requests(pending, model, outer)
        if isinstance(requests, Reason):
            for one in pending:
                one.kind.refusal = requests
            return
        started = time.perf_counter()
        client, run = self._client, self._run
        names = ", ".join(sorted({one.kind.name for one in pending}))
        follow = client.component.follow(f"{len(pending)} kinds of blocks ({names})")
        graphs = obtain_all(requests, client.when_missing, follow)
        seconds = time.perf_counter() - started
        for one, graph in zip(pending, graphs, strict=True):
            made = KindGraph(one.kind.of, graph)
            one.among[one.among.index(one.kind)] = made
            if one.narrow in one.among and made.serves_all_of(one.narrow):
                one.among.remove(one.narrow)
            if isinstance(graph, LoadedGraph):
                run.report.blocks.note_graph(graph, seconds, made=True)

    def _requests(
        self,
        pending: Sequence[_Pending],
        model: torch.nn.Module,
        outer: ModelCall | None,
    ) -> list[Request] | Reason:
        """What to compile, or why nothing can be. Never raises."""
        client, run = self._client, self._run
        if outer is None:
            return reasons.OuterReplaced(type(model).__name__)
        try:
            described = OuterCall.of(model, outer)
            skeleton = run.skeleton(model)
            requests: list[Request] = []
            for one in pending:
                narrow = one.narrow
                calls = KindCalls(
                    one.block,
                    one.kind.form,
                    (*one.seen, *([] if narrow is None else [narrow.example()])),
                    described,
                    one.options,
                    client.packages,
                    one.kind.attention,
                    one.kind.ones,
                    () if narrow is None else tuple(narrow.samples()),
                )
                asked = dataclasses.replace(one.request, calls=calls, model=skeleton)
                requests.append(client.component.with_memory(run, asked, one.like))
            return requests
        except Exception as error:  # of whatever the model is given
            log.debug("a model's call cannot be described", exc_info=True)
            return reasons.BlockArgument(in_brief(error))

    def _one_too_many(self, one: _Pending) -> bool:
        """Whether this process has compiled as many kinds of a block as it may; the kind is refused then."""
        compiled = registry().exact_compiles.setdefault(one.request.key.architecture, set())
        if one.request.key.digest not in compiled and len(compiled) >= MOST_KINDS:
            one.kind.refusal = reasons.TooManyKinds(MOST_KINDS)
            return True
        compiled.add(one.request.key.digest)
        return False
