from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import toy

from onegraph.common.reasons import ForwardHook, ReplacedPart
from onegraph.compiler.code.fingerprint import Rules, digest
from onegraph.runtime.guards.guard_cache import GuardCache
from onegraph.runtime.guards.module_guard import ModuleGuard


def replace_activation(module: Any) -> None:
    module.mix = torch.nn.Linear(8, 8)


CHANGES: list[Callable[[Any], Any]] = [
    lambda m: setattr(m, "heads", 5),
    lambda m: setattr(m.inner, "padding_mode", "circular"),
    lambda m: setattr(m.inner, "dilation", (2, 2)),
    lambda m: m.add_module("mix", torch.nn.Identity()),
    lambda m: setattr(m.out, "__class__", torch.nn.ConvTranspose2d),
    lambda m: setattr(m, "__dict__", {**vars(m), "heads": 3}),
    lambda m: setattr(m.inner, "__dict__", {**vars(m.inner), "stride": (2, 2)}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_digest_changes_the_version(change: Callable[[Any], Any]) -> None:
    module = toy.Toy()
    guard, before = ModuleGuard(module, Rules()), digest(module)
    version = guard.refresh(module)
    assert guard.refresh(module) == guard.refresh(module) == version
    change(module)
    assert guard.refresh(module) != version
    assert digest(module) != before
    assert guard.patched is None
    assert guard.architecture(module) == digest(module)


@pytest.mark.parametrize("change", CHANGES[:4])
def test_common_changes_are_seen_between_two_calls(change: Callable[[Any], Any]) -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    change(module)
    assert guard.refresh(module) != version


def touched(module: Any, few: bool) -> None:
    """Write to the attributes of one module, or of all, and leave them as they were."""
    for child in [module] if few else module.modules():
        vars(child)["mark"] = 1
        del vars(child)["mark"]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("change", CHANGES[:4])
def test_a_change_is_seen_among_other_writes(change: Callable[[Any], Any], few: bool) -> None:
    module = torch.nn.Sequential(*(toy.Toy() for _ in range(3)))
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    change(module[1])
    touched(module, few)
    assert guard.refresh(module) != version


@pytest.mark.parametrize("few", [True, False])
def test_writes_that_change_nothing_cost_no_new_look(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(*(toy.Toy() for _ in range(3)))
    module[1].heads = float("nan")  # it equals nothing, not even itself
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    monkeypatch.setattr(guard, "_rebuild", lambda module: pytest.fail("all was taken down anew"))
    touched(module, few)
    assert guard.refresh(module) == version


class Another(toy.Toy):
    """Looks as a `Toy` does."""


def test_another_class_of_the_module_itself_is_seen() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    module.__class__ = Another
    assert guard.refresh(module) != version


@pytest.mark.parametrize("where", ["", "mix"])
@pytest.mark.parametrize("routed", [True, False])
def test_what_is_set_is_found_whoever_else_writes(where: str, routed: bool) -> None:
    """The route to a block is written to the module itself, which is looked at alone then."""
    names = "packs_mark", "packs_list"
    module: Any = toy.Toy()
    one = module.get_submodule(where)
    one.packs_list = []
    guard = ModuleGuard(module, Rules(placement=lambda name: name.startswith("packs_")))
    version = guard.refresh(module)
    assert guard.where_set(*names) is None

    def found() -> bool:
        if routed:
            touched(module, True)
        assert guard.refresh(module) == version
        assert guard.where_set("packs_other") is None
        return guard.where_set(*names) == (f"{where} (Linear)" if where else "the model (Toy)")

    assert not found()
    one.packs_list.append(1)
    assert found()
    one.packs_list.clear()
    assert not found()
    one.packs_mark = True
    assert found()
    del one.packs_mark
    assert not found()


def test_what_a_class_sets_is_found_when_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ModuleGuard(toy.Toy(), Rules())
    assert guard.where_class_set("packs_mark", "packs_other") is None
    monkeypatch.setattr(torch.nn.Linear, "packs_other", True, raising=False)
    assert guard.where_class_set("packs_mark", "packs_other") == "mix (Linear)"


@pytest.mark.parametrize("table", ["_parameters", "_buffers", "_modules", "_forward_hooks"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_table_that_had_something_loses_it(table: str, kept: bool) -> None:
    """A table is compared by its number where it had something, by its length where it was empty."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    if "hooks" in table:
        module[1].register_forward_hook(lambda *args: None)
    owner = module if table == "_modules" else module[1]
    guard = ModuleGuard(module, Rules())
    before, patched = guard.refresh(module), guard.patched
    entries: dict[Any, Any] = getattr(owner, table)
    name, entry = next(iter(entries.items()))
    if kept:
        entries[name] = None
    else:
        del entries[name]
    if not (kept and "hooks" in table):  # a hook that is None is one still
        assert (guard.refresh(module), guard.patched) != (before, patched)
    entries.pop(name, None)
    rest = {**entries}
    entries.clear()
    entries.update({name: entry, **rest})
    if table != "_modules":  # children that came back are numbered anew
        assert (guard.refresh(module), guard.patched) == (before, patched)


def test_a_weight_that_is_none_for_a_while() -> None:
    """The names of the weights are those of before, and so is everything but the weights themselves."""
    module: Any = toy.Toy()
    guard = ModuleGuard(module, Rules())
    before, bias = guard.refresh(module), module.mix.bias
    module.mix._parameters["bias"] = None
    without = guard.refresh(module)
    assert guard.refresh(module) == without != before
    module.mix._parameters["bias"] = bias
    assert guard.refresh(module) == before


def like(part: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(part)


def marked(module: Any) -> None:
    """Another pack's mark goes, and a method comes: as many attributes as before."""
    del module.mix.packs_mark
    module.mix.forward = lambda x: x


def marked_again(module: Any) -> None:
    del module.mix.packs_mark, module.mix.packs_copy
    module.mix.forward, module.mix.packs_mark = (lambda x: x), True


HIDDEN: dict[str, Callable[[Any], Any]] = {
    "a child exchanged for its like": lambda m: setattr(m, "mix", like(m.mix)),
    "the same, written into the table": lambda m: m._modules.__setitem__("mix", like(m.mix)),
    "an attribute for a method": marked,
    "an attribute for a method, another put back": marked_again,
    "what Module.compile() leaves": lambda m: object.__setattr__(m.mix, "_compiled_call_impl", lambda x: x),
    "a list changed in place": lambda m: m.sizes[1].append(3),
    "a bias where there was none, written into the table": lambda m: m.bare._parameters.__setitem__(
        "bias", torch.nn.Parameter(torch.zeros(8))
    ),
    "another table of children": lambda m: setattr(m, "_modules", {**m._modules, "mix": like(m.mix)}),
    "another table of hooks": lambda m: setattr(m.mix, "_forward_hooks", {1: lambda *args: None}),
    "another table of weights": lambda m: setattr(m.bare, "_parameters", {"weight": torch.nn.Parameter(torch.ones(1))}),
    "children in another order": lambda m: m._modules.update({"mix": m._modules.pop("mix")}),
    "a child added to the table": lambda m: m.mix._modules.__setitem__("more", torch.nn.Identity()),
}


class Reads(toy.Toy):
    """Names an attribute of `prepared`, so that it counts."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return super().forward(x, context) * len(self.sizes)  # type: ignore[arg-type]


def prepared() -> Any:
    module: Any = Reads()
    module.mix.packs_mark = module.mix.packs_copy = True
    module.sizes = [1, [2]]
    module.bare = torch.nn.Linear(8, 8, bias=False)
    return module


def test_two_guards_agree_on_the_children() -> None:
    module = toy.Toy()
    guards = [ModuleGuard(module, Rules()) for _ in range(2)]
    first, second = (guard.refresh(module) for guard in guards)
    assert first == second
    module.mix = like(module.mix)  # type: ignore[assignment]
    assert first not in {guard.refresh(module) for guard in guards}
    assert len({guard.version for guard in guards}) == 1


def test_a_patch_that_goes_again_leaves_the_version() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    module.mix.forward = lambda x: x  # type: ignore[assignment]
    assert guard.refresh(module) != version
    del module.mix.forward
    assert guard.refresh(module) == version


PATCHES: dict[str, Callable[[Any], Any]] = {
    "forward": lambda m: setattr(m.mix, "forward", lambda x: x),
    "_conv_forward": lambda m: setattr(m.inner, "_conv_forward", lambda *args: args[0]),
    "forward hook": lambda m: m.out.register_forward_hook(lambda *args: None),
}


@pytest.mark.parametrize("what", PATCHES)
def test_code_that_is_put_on_a_module_is_named(what: str) -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    PATCHES[what](module)
    guard.refresh(module)
    assert guard.patched is not None
    assert (guard.patched.what if isinstance(guard.patched, ReplacedPart) else "forward hook") == what
    assert guard.patched.where.split(" ")[0] in ("mix", "inner", "out")


def test_a_subclass_that_poses_as_its_base_is_named() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    assert guard.patched is None
    base = type(module.mix)
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "forward": replace_activation}
    module.mix.__class__ = type(base.__name__, (base,), names)
    guard.refresh(module)
    assert guard.patched == ReplacedPart("class", "mix (Linear)", "test_module_guard")


def test_a_hook_on_every_module_counts() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    guard.refresh(module)
    handle.remove()
    assert guard.patched == ForwardHook("every module")
    guard.refresh(module)
    assert guard.patched is None


def test_attributes_that_place_weights_change_nothing() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules(placement=lambda name: "comfy" in name))
    version = guard.refresh(module)
    module.inner.comfy_cast_weights = True  # type: ignore[assignment]
    assert guard.refresh(module) == version
    assert guard.where_set("comfy_cast_weights") == "inner (Conv2d)"
    del module.inner.comfy_cast_weights
    module.inner.padding_mode, module.inner.comfy_x = "circular", 1  # type: ignore[assignment]
    assert guard.refresh(module) != version


def test_a_copy_of_guards_is_empty() -> None:
    """They are kept on models, which others may copy or write to a file."""
    module, guards = toy.Toy(), GuardCache()
    guards.of(module, Rules())
    for other in (copy.deepcopy(guards), pickle.loads(pickle.dumps(guards))):
        assert [*guards._guards] == [module] and not [*other._guards]
        assert other.of(module, Rules()).version == guards.of(module, Rules()).version


def test_weights_of_another_dtype_are_noticed_by_a_run() -> None:
    module, guards = toy.Toy(), GuardCache()
    guard = guards.of(module, Rules())
    version = guard.version
    module.half()
    assert guards.of(module, Rules()) is guard
    assert guard.version != version


def test_a_layer_that_torch_is_to_compile_is_noticed() -> None:
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    module.inner.compile()
    guard.refresh(module)
    assert guard.patched == ReplacedPart("compile()", "inner (Conv2d)", "torch.compile")


def test_what_is_written_and_taken_back_has_nothing_inspected_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the route to a block is, at each call of the model."""
    module = toy.Toy()
    guard = ModuleGuard(module, Rules())
    version, inspected = guard.refresh(module), []
    monkeypatch.setattr(guard, "_rebuild", inspected.append)
    for _ in range(3):
        vars(module)["forward"] = toy.sizes
        del vars(module)["forward"]
        assert guard.refresh(module) == version and not inspected


def test_an_interchangeable_function_must_be_the_hosts() -> None:
    rules = Rules(interchangeable=frozenset({"choice"}))
    module = toy.Toy()
    guard = ModuleGuard(module, rules)
    version = guard.refresh(module)
    module.choice = toy.sizes
    guard.refresh(module)
    assert guard.patched is None
    for other in (replace_activation, functools.partial(toy.sizes, 1)):
        module.choice = other
        assert guard.refresh(module) != version
        assert isinstance(guard.patched, ReplacedPart) and guard.patched.what == "choice"
        module.choice = toy.sizes
        assert guard.refresh(module) == version and guard.patched is None


class Scaling:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x * self.by


@pytest.mark.parametrize("hold", [lambda one: one, lambda one: [one], lambda one: functools.partial(one)])
def test_an_object_that_a_module_holds_is_part_of_it(hold: Callable[[Any], Any]) -> None:
    """Whether it is another one, or the same one that has changed."""
    module, scaling = toy.Toy(), Scaling(1.0)
    module.heads = hold(scaling)
    guard = ModuleGuard(module, Rules())
    version, architecture = guard.refresh(module), guard.architecture(module)
    assert guard.refresh(module) == version
    scaling.by = 2.0
    changed = guard.refresh(module)
    assert changed != version and guard.architecture(module) == digest(module) != architecture
    scaling.by = 1.0
    assert guard.refresh(module) == version and guard.architecture(module) == architecture
    module.heads = hold(Scaling(3.0))
    assert guard.refresh(module) not in (version, changed) and guard.architecture(module) == digest(module)


def test_a_guard_keeps_neither_module_nor_weights() -> None:
    module, guards = toy.Toy(), GuardCache()
    guards.of(module, Rules()).architecture(module)
    gone = [weakref.ref(module), *(weakref.ref(p) for p in module.parameters())]
    del module
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []


def test_swapped_children_are_seen_with_own_weights() -> None:
    """The metadata of the weights is that of the children there are now, not of those that were there before."""
    module, guards = toy.Toy(), GuardCache()
    guards.of(module, Rules())
    module.mix = torch.nn.Linear(8, 8).half()
    version = guards.of(module, Rules()).version
    assert guards.of(module, Rules()).version == version == GuardCache().of(module, Rules()).version


@pytest.mark.parametrize("table", ["_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"])
def test_a_table_that_was_empty_is_filled_from_another(table: str) -> None:
    """Python copies such a table as a whole, which some of its write counters miss."""
    module = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2))
    guard = ModuleGuard(module, Rules())
    before = guard.refresh(module)
    values = {"_parameters": torch.nn.Parameter(torch.ones(1)), "_buffers": torch.ones(1), "_modules": torch.nn.ReLU()}
    getattr(module[0], table).update({1 if "hooks" in table else "added": values.get(table, lambda *args: None)})
    assert guard.refresh(module) != before or guard.patched


def test_a_counter_that_misses_attributes_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13's: each look then compares the values."""
    from onegraph.common import torch_guards

    class Stuck:
        def __call__(self, table: object) -> int:
            return 7

    real = torch_guards.require
    monkeypatch.setattr(torch_guards, "require", lambda name: Stuck() if "dict_version" in name else real(name))
    for counter in (torch_guards.attribute_writes(), torch_guards.dict_writes()):
        assert counter({}) != counter({})
    module = torch.nn.LayerNorm(4)
    guard = ModuleGuard(module, Rules())
    before = guard.refresh(module)
    module.eps = 0.5
    assert guard.refresh(module) != before


class Configured(toy.Toy):
    """Reads its options from plain values in containers, as packs' layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"scale": 2.0, "steps": [1, 2]}
        self.modes = {"wide", "deep"}

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        scale = self.options["scale"] if "wide" in self.modes else self.options["steps"][0]
        return super().forward(x, context) * scale


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.options.update(scale=3.0),
        lambda m: m.options["steps"].append(3),
        lambda m: m.modes.discard("wide"),
        lambda m: setattr(m, "options", {"scale": 2.0}),
    ],
)
def test_a_value_inside_of_a_container_is_of_the_architecture(change: Callable[[Any], Any]) -> None:
    module, other = Configured(), Configured()
    guard = ModuleGuard(module, Rules())
    version, before = guard.refresh(module), digest(module)
    assert before == digest(other) and guard.refresh(module) == version
    change(module)
    assert guard.refresh(module) != version
    assert digest(module) != before


def test_a_container_of_other_objects_is_no_configuration() -> None:
    """A cache of tensors, whose entries come and go."""
    module: Any = Configured()
    module.options = {"scale": 2.0, "kept": torch.zeros(1)}
    guard, before = ModuleGuard(module, Rules()), digest(module)
    version = guard.refresh(module)
    module.options["kept"] = torch.ones(1)
    assert guard.refresh(module) == version and digest(module) == before


def test_a_cache_that_is_filled_by_a_call_is_no_other_architecture() -> None:
    module: Any = Configured()
    module.options = {}
    guard, before = ModuleGuard(module, Rules()), digest(module)
    version = guard.refresh(module)
    module.options["kept"] = torch.zeros(2)
    assert guard.refresh(module) == version and digest(module) == before


def test_plain_values_in_what_was_empty_are_seen() -> None:
    module: Any = Configured()
    module.options = {}
    guard = ModuleGuard(module, Rules())
    version = guard.refresh(module)
    module.options["scale"] = 3.0
    changed = guard.refresh(module)
    assert changed != version
    module.options["scale"] = torch.zeros(2)  # which equals no number
    assert guard.refresh(module) not in (changed, None)
