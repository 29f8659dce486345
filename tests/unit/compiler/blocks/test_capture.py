"""Blocks are recorded in a live model, captured for all sizes, and compute what they compute eager."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.forms import matcher
from support.models import toy_blocks, toy_writers

from onegraph.common.errors import CaptureError
from onegraph.compiler.blocks.capture import BlockCalls, CapturedBlock, Settings, capture_block
from onegraph.compiler.blocks.records import Kind, Recording, recording
from onegraph.compiler.blocks.repeated import repeated_blocks
from onegraph.compiler.code.fingerprint import Rules
from onegraph.signature.call_rules import CallRules
from onegraph.signature.call_tree import flatten, rebuild
from onegraph.signature.parameters import as_call, parameters_of
from onegraph.signature.size_rules import MOST, sizes_of

PACKAGES = ("support",)
SEEN = [(2, 6, 10, 7), (1, 4, 7, 3), (3, 9, 5, 12), (2, 11, 8, 4)]  # batch, height, width, tokens
OTHERS = [(1, 5, 5, 1), (4, 3, 8, 30), (1, 1, 2, 1), (2, 16, 16, 77), (1, 7, 11, 5)]
attend = torch.nn.functional.scaled_dot_product_attention


def options() -> dict[str, Any]:
    return {"sigmas": torch.ones(3)}


def recorded(model: toy_blocks.Model, indexed: bool = False) -> Recording:
    with recording(repeated_blocks(model), Rules(), PACKAGES) as found:
        for one in SEEN:
            model(*toy_blocks.call(*one), options(), indexed)
    return found


def captured(kind: Kind) -> CapturedBlock:
    plain = {name: value for name, value in kind.options.items() if isinstance(value, bool | int | float | str)}
    calls = BlockCalls(kind.form, tuple(kind.records), plain, PACKAGES)
    import torch.fx.experimental._config as config

    with config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return capture_block(
            copy.deepcopy(kind.block), calls, torch.device("cpu"), Settings({"optimized_attention_override": attend})
        )


def test_recording_leaves_nothing_behind() -> None:
    model = toy_blocks.model()
    x = toy_blocks.call(*SEEN[0])
    before = model(*x, options())
    found = recorded(model)
    assert [kind.names for kind in found.kinds] == [["doubles.0", "doubles.1"], ["singles.0", "singles.1", "singles.2"]]
    assert [len(kind.records) for kind in found.kinds] == [4, 4] and not found.unknown
    assert not any("forward" in vars(child) for child in model.modules())
    assert torch.equal(model(*x, options()), before)


def test_a_replaced_block_and_another_thread_are_left_alone() -> None:
    import threading

    model = toy_blocks.model()
    vars(model.singles[0])["forward"] = lambda x, vec, **kwargs: x
    with recording(repeated_blocks(model), Rules(), PACKAGES) as found:
        thread = threading.Thread(target=lambda: model(*toy_blocks.call(*SEEN[0]), options()))
        thread.start()
        thread.join()
        assert found.kinds == []
        model(*toy_blocks.call(*SEEN[0]), options())
    assert [kind.names for kind in found.kinds] == [["doubles.0", "doubles.1"], ["singles.1", "singles.2"]]
    assert "forward" in vars(model.singles[0])


def test_what_cannot_be_told_apart_is_named() -> None:
    model = toy_blocks.model()
    with recording(repeated_blocks(model), Rules(), ()) as found:
        model(*toy_blocks.call(*SEEN[0]), options())
    assert found.kinds == []
    assert set(found.unknown.values()) == {"support.models.toy_blocks.Modulation"} and len(found.unknown) == 5


def test_an_exception_ends_the_recording() -> None:
    model = toy_blocks.model()
    with pytest.raises(NotImplementedError), recording(repeated_blocks(model), Rules(), PACKAGES):
        model(*toy_blocks.call(*SEEN[0]), {"patches": {"attn1_patch": [1]}})
    assert not any("forward" in vars(child) for child in model.modules())


class Served:
    """The model with its blocks run by captured graphs, as a runner would."""

    def __init__(self, model: toy_blocks.Model, graphs: dict[str, CapturedBlock]) -> None:
        self.model, self.served, self.refused = model, 0, 0
        self.modules = {id(graph): graph.program.module() for graph in graphs.values()}
        self.graphs = graphs

    def __call__(self, *args: Any) -> Any:
        blocks = repeated_blocks(self.model)
        for name, block in blocks.items():
            vars(block)["forward"] = self.forward(block, self.graphs[name])
        try:
            return self.model(*args)
        finally:
            for block in blocks.values():
                del vars(block)["forward"]

    def forward(self, block: Any, graph: CapturedBlock) -> Any:
        leaves_of = matcher(graph.signature.arguments)

        def forward(*args: Any, **kwargs: Any) -> Any:
            named = parameters_of(type(block)).bind(args, kwargs)
            leaves = leaves_of(named)
            given = next(one for one in (named, named.get("**", {})) if "transformer_options" in one)
            refused = graph.signature.options.refused(given["transformer_options"])
            if leaves is None or refused is not None or not graph.signature.sizes.fits(sizes_of(leaves)):
                self.refused += 1
                return type(block).forward(block, *args, **kwargs)
            self.served += 1
            module = self.modules[id(graph)]
            module.module.load_state_dict(block.state_dict())
            outputs = module(*graph.signature.inputs(leaves, torch.device("cpu")))
            return graph.signature.finish(leaves, outputs)

        return forward


@pytest.mark.parametrize("indexed", [False, True])
def test_one_graph_a_kind_serves_all_sizes(indexed: bool) -> None:
    model = toy_blocks.model()
    graphs = {
        name: captured(kind) for kind in recorded(model, indexed).kinds for name in [kind.names[0]] for kind in [kind]
    }
    by_class = {name.partition(".")[0]: graph for name, graph in graphs.items()}
    served = Served(model, {name: by_class[name.partition(".")[0]] for name in repeated_blocks(model)})
    assert all(graph.operations > 10 for graph in graphs.values())
    for other in (toy_blocks.model(5), model):  # the graphs hold no weights
        served.model = other
        for sizes in [*SEEN, *OTHERS]:
            inputs = toy_blocks.call(*sizes)
            wanted = other(*inputs, options(), indexed)
            found = served(*inputs, options(), indexed)
            assert float((found - wanted).norm() / wanted.norm()) < 1e-5, sizes
    assert served.refused == 0 and served.served == 5 * 2 * len([*SEEN, *OTHERS])


def test_signatures_there_and_back() -> None:
    model = toy_blocks.model()
    double, single = (captured(kind).signature for kind in recorded(model, indexed=True).kinds)
    assert [len(double.mutated), len(single.mutated)] == [2, 0]
    assert double.aliases == double.mutated and single.aliases == (None,)
    assert double.options.absent == (("optimized_attention_override",), ("patches", "attn1_patch"))
    assert single.options.absent == (("heads",),)
    for signature in (double, single):
        assert CallRules.from_json(json.loads(json.dumps(signature.to_json())), PACKAGES) == signature
        for name in signature.to_json():
            broken = signature.to_json()
            del broken[name]
            with pytest.raises(ValueError, match="no call rules"):
                CallRules.from_json(broken, PACKAGES)
        for name, value in (("mutated", [99]), ("aliases", []), ("aliases", [99] * len(signature.aliases))):
            with pytest.raises(ValueError, match="no call rules"):
                CallRules.from_json({**signature.to_json(), name: value}, PACKAGES)


def test_calls_that_a_graph_does_not_serve() -> None:
    model = toy_blocks.model()
    kinds = recorded(model).kinds
    by_class = {kind.names[0].partition(".")[0]: captured(kind) for kind in kinds}
    served = Served(model, {name: by_class[name.partition(".")[0]] for name in repeated_blocks(model)})
    inputs = toy_blocks.call(*SEEN[0])
    for given, indexed, refused in [
        ({**options(), "heads": 3}, False, 3),  # the option that the single blocks read
        ({**options(), "patches": {"post_input": [1]}}, False, 0),
        (options(), True, 3),  # called in another form
    ]:
        served.refused = 0
        wanted = model(*inputs, given, indexed)
        assert torch.allclose(served(*inputs, given, indexed), wanted, atol=1e-5)
        assert served.refused == refused


class Branching(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return x + 1 if bool(x.sum() > 0) else x - 1


class Writing(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        kwargs["transformer_options"]["block"] = 3
        return x + 1


class Filling(toy_blocks.Single):
    """Keeps its result for the next block, as caches do."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        vec.scale = vec.scale + 1
        return x + vec.scale[:, None]


class Leaving(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        vec.kept = x + 1
        return vec.kept * 2


class Keeping(toy_blocks.Single):
    """Keeps what it computes for its next call."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.items: list[Any] = []
        self.kept: dict[str, Any] = {"keys": {}}
        self.register_buffer("count", torch.zeros(()))

    @staticmethod
    def keep(block: Any, y: Any) -> None:
        block.last = y

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        y = super().forward(x, vec, start, **kwargs)
        self.keep(self, y)
        return y


class KeepingInAList(Keeping):
    keep = staticmethod(lambda block, y: block.items.append(y))


class KeepingInADictionary(Keeping):
    keep = staticmethod(lambda block, y: block.kept["keys"].update(first=y))


class KeepingInABuffer(Keeping):
    keep = staticmethod(lambda block, y: block.count.add_(1))


class Telling(toy_blocks.Single):
    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return x + 1, 7 + x.shape[0] % 3


class Returning(toy_blocks.Single):
    """Whoever changes one of its results in place changes another tensor as well."""

    results: Callable[[torch.nn.Module, Any, Any], Any]

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return type(self).results(self, x, self.second(self.first(x)))


class OneTwice(Returning):
    results = staticmethod(lambda block, x, y: (y, y))


class AndAView(Returning):
    results = staticmethod(lambda block, x, y: (y, y[:, 1:]))


class Overlapping(Returning):
    results = staticmethod(lambda block, x, y: (y[:, :2], y[:, 1:]))


class InTurns(Returning):
    results = staticmethod(lambda block, x, y: (y[..., ::2], y[..., 1::2]))


class Transposed(Returning):
    results = staticmethod(lambda block, x, y: (y, y.transpose(1, 2)))


class OfAnArgument(Returning):
    results = staticmethod(lambda block, x, y: (y, x[:, 1:]))


class OfAWeight(Returning):
    results = staticmethod(lambda block, x, y: (y, block.second.weight.t()))


class Drawing(toy_blocks.Single):
    """Adds noise, as LTX's decoders do."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        result: Any = super().forward(x, vec, start, **kwargs)
        return result + torch.randn_like(result)


class Dropping(toy_blocks.Single):
    """Has dropout that nobody switches off."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return torch.nn.functional.dropout(super().forward(x, vec, start, **kwargs), 0.1, training=True)


class Attending(toy_blocks.Single):
    """Has attention that drops."""

    chance = 0.1

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        heads = super().forward(x, vec, start, **kwargs).unsqueeze(1)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=self.chance).squeeze(1)


class AttendingToAll(Attending):
    """Has attention that drops nothing."""

    chance = 0.0


class InTraining(toy_blocks.Single):
    """Has dropout that is on and drops nothing, as a ControlNet of ComfyUI has."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return torch.nn.functional.dropout(super().forward(x, vec, start, **kwargs), 0.0, training=True)


class Evaluated(toy_blocks.Single):
    """Has dropout that is off."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        return torch.nn.functional.dropout(super().forward(x, vec, start, **kwargs), 0.1, training=False)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Branching, "as one graph"),
        (Writing, "changes the options"),
        (Filling, "writes into a list, a dictionary or an object"),
        (Leaving, "writes into a list, a dictionary or an object"),
        (Telling, "number"),
        (Drawing, "draws random numbers"),
        (Dropping, "draws random numbers"),
        (Attending, "draws random numbers"),
        *((cls, "of its own") for cls in (Keeping, KeepingInAList, KeepingInADictionary, KeepingInABuffer)),
        *(
            (cls, "global names or classes")
            for cls in (
                toy_writers.OnItsClass,
                toy_writers.InAGlobalName,
                toy_writers.InAGlobalDictionary,
                toy_writers.InAGlobalObject,
            )
        ),
        *(
            (cls, "shares memory")
            for cls in (OneTwice, AndAView, Overlapping, InTurns, Transposed, OfAnArgument, OfAWeight)
        ),
    ],
)
def test_blocks_that_no_graph_can_stand_for(cls: type[toy_blocks.Single], why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        captured_of(cls)


@pytest.mark.parametrize("cls", [Evaluated, InTraining, AttendingToAll])
def test_dropout_that_is_off_draws_nothing(cls: type[toy_blocks.Single]) -> None:
    assert captured_of(cls)[1].operations


def test_what_imports_and_warnings_leave_in_modules_is_pythons() -> None:
    sys.modules.pop("support.models.toy_memory", None)
    captured_of(toy_writers.Importing)
    assert "support.models.toy_memory" in sys.modules and "__warningregistry__" in vars(toy_writers)


def captured_of(cls: type[toy_blocks.Single]) -> tuple[torch.nn.Module, CapturedBlock]:
    """A block of a class, captured for any batch and number of tokens."""
    block = cls(16).requires_grad_(False)
    named = parameters_of(cls).bind(
        (torch.zeros(2, 3, 16), toy_blocks.Modulation(*torch.zeros(2, 2, 16))), {"transformer_options": {}}
    )
    form, leaves = flatten(named, PACKAGES)
    args, kwargs = as_call(rebuild(form, leaves, {}))
    assert len(args) + len(kwargs) == 4
    return block, captured_at(block, form, ((2, 3, 16), (2, 16), (2, 16)), ((1, 5, 16), (1, 16), (1, 16)))


def captured_at(block: torch.nn.Module, form: Any, *records: Any) -> CapturedBlock:
    import torch.fx.experimental._config as config

    with config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return capture_block(block, BlockCalls(form, records, {}, PACKAGES), torch.device("cpu"))


class Halves(Returning):
    results = staticmethod(lambda block, x, y: y.chunk(2, dim=-1))


class Parts(Returning):
    results = staticmethod(lambda block, x, y: y.split([4, 8, 4], dim=-1))


class TextAndImage(Returning):
    @staticmethod
    def results(block: torch.nn.Module, x: Any, y: Any) -> Any:
        both = torch.cat([y, x], 1)
        return both[:, : y.shape[1]], both[:, y.shape[1] :], y


@pytest.mark.parametrize("cls", [Halves, Parts, TextAndImage])
def test_slices_that_have_nothing_in_common_are_results_of_their_own(cls: type[toy_blocks.Single]) -> None:
    block, graph = captured_of(cls)
    module = graph.program.module()
    assert graph.signature.sizes.ranges == ((1, MOST), (1, MOST))
    for batch, tokens in ((1, 1), (1, 9), (4, 2), (3, 5)):
        x, vec = torch.randn(batch, tokens, 16), torch.randn(2, batch, 16)
        wanted = block(x.clone(), toy_blocks.Modulation(*vec), transformer_options={})
        found = module(x, *vec)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape and torch.allclose(one, other, atol=1e-6)
        assert len({one.untyped_storage().data_ptr() for one in found}) == len(found)


class Counting(toy_blocks.Single):
    """As blocks that return how many keys they have kept."""

    def forward(self, x: Any, vec: Any, start: Any = None, **kwargs: Any) -> Any:
        y = super().forward(x, vec, start, **kwargs)
        return (y, (x.shape[1], 4 + x.shape[0], 16)), x.shape[0] * x.shape[1]


def test_whole_numbers_that_follow_from_sizes_are_results() -> None:
    block, graph = captured_of(Counting)
    data = json.loads(json.dumps(graph.signature.to_json()))
    signature = CallRules.from_json(data, PACKAGES)
    assert signature == graph.signature
    module = graph.program.module()
    for batch, tokens in ((1, 1), (1, 9), (4, 2)):
        leaves = [torch.randn(batch, tokens, 16), *torch.randn(2, batch, 16)]
        found, count = signature.finish(leaves, module(*leaves))
        assert found[1] == (tokens, 4 + batch, 16) and count == batch * tokens
        assert {type(one) for one in (*found[1], count)} == {int}
        wanted = block(leaves[0], toy_blocks.Modulation(*leaves[1:]), transformer_options={})
        assert torch.allclose(found[0], wanted[0][0], atol=1e-6)
    for aliases in ([None, 0, None, ["fixed", 16], ["product", 0, 0, 1]], [*data["aliases"][:-1], ["symbol", 0, 7]]):
        with pytest.raises(ValueError, match="no call rules"):
            CallRules.from_json({**data, "aliases": aliases}, PACKAGES)


class NormedHeads(torch.nn.Module):
    """The norm of queries asks whether channels come last."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(16, 16)
        self.norm = torch.nn.RMSNorm(4)

    def forward(self, x: Any, other: Any) -> Any:
        return self.norm(self.q(x).unflatten(-1, (4, 4))).flatten(2) + other.mean(1, keepdim=True)


class Convolving(torch.nn.Module):
    """So does a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Any, other: Any) -> Any:
        image = x[:, :, None].expand(-1, -1, 2, -1).permute(0, 3, 1, 2)
        return self.conv(image).flatten(2).mean(2) + other.sum((1, 2))[:, None]


@pytest.mark.parametrize("cls", [NormedHeads, Convolving])
def test_whether_channels_come_last_is_not_asked(cls: type[torch.nn.Module]) -> None:
    block = cls().requires_grad_(False)
    form, _ = flatten({"x": torch.zeros(2, 3, 16), "other": torch.zeros(2, 7, 16)}, PACKAGES)
    graph = captured_at(block, form, ((2, 3, 16), (2, 7, 16)), ((3, 5, 16), (3, 4, 16)))
    assert graph.signature.sizes.ranges == ((1, MOST),) * 3
    module = graph.program.module()
    for batch, tokens, others in ((1, 1, 1), (1, 8, 1), (4, 1, 5), (2, 6, 7)):
        given = torch.randn(batch, tokens, 16), torch.randn(batch, others, 16)
        assert torch.allclose(module(*given)[0], block(*given), atol=1e-5)
