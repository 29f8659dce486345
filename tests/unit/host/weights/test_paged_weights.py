"""Weights under DynamicVRAM, with a stand-in for the host's pages: memory of this process, "filled" by copying."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import torch
from support.comfyui.pages import PAGE, FakeVbar

from onegraph.common.reasons import NoRoomForWeights, PagedWeights
from onegraph.common.refused import Refused
from onegraph.compiler import skeleton
from onegraph.compiler.code import fingerprint
from onegraph.host.weights import paged_weights


class Host:
    """The host's two functions that every eager layer calls."""

    def __init__(self, factor: float = 1.0) -> None:
        self.fills = 0
        self.factor = factor  # a LoRA
        self.moves = False  # gives copies instead of the pages

    def cast(self, layer: Any, dtype: Any, device: Any, bias_dtype: Any, offloadable: bool) -> Any:
        vbar = layer._v[0]
        signature = vbar.fault(layer._v[1], layer._v[2])
        weight = vbar.view(layer._v, layer.weight)
        if signature != layer._v_signature:
            self.fills += 1
            weight.copy_(layer.weight * self.factor)
            layer._v_signature = signature
        return (weight.clone() if self.moves else weight), None, None

    def uncast(self, layer: Any, weight: Any, bias: Any, stream: Any) -> None:
        layer._v[0].unpin(layer._v[1], layer._v[2])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.big = torch.nn.Linear(32, 64, bias=False)
        self.small = torch.nn.LayerNorm(64)
        self.none = torch.nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.small(self.big(x))
        return result


def dynamic(nesting: bool = True) -> tuple[Net, FakeVbar]:
    net = Net().requires_grad_(False)
    vbar = FakeVbar(8, nesting=nesting)
    net.big._v = vbar.alloc(net.big.weight.nbytes)  # type: ignore[assignment]
    net.big._v_signature = None  # type: ignore[assignment]
    net.big.seed_key = "big"  # type: ignore[assignment]
    net.big.comfy_cast_weights = True  # type: ignore[assignment]
    return net, vbar


def paged(net: Net, vbar: FakeVbar, host: Host, version: int = 1) -> paged_weights.Paged:
    return paged_weights.Paged(net, version, vbar, torch.device("cpu"), paged_weights.Casting(host.cast, host.uncast))


def test_a_held_model_computes_what_the_host_fills_in() -> None:
    net, vbar = dynamic()
    host = Host(factor=2.0)
    x = torch.randn(3, 32)
    with paged(net, vbar, host).held() as held:
        assert isinstance(held, Net)
        assert torch.equal(held(x), net.small(x @ (2.0 * net.big.weight).T))
        assert any(vbar.pins)
    assert not any(vbar.pins)
    assert host.fills == 1


def test_weights_are_filled_again_only_when_they_went() -> None:
    net, vbar = dynamic()
    host = Host()
    run = paged(net, vbar, host)
    held = []
    for _ in range(3):
        with run.held() as module:
            assert isinstance(module, Net)
            held.append(module.big.weight)
    assert host.fills == 1
    assert held[0] is held[1] is held[2]
    vbar.evict()
    vbar.memory.zero_()
    with run.held() as module:
        assert isinstance(module, Net)
        assert torch.equal(module.big.weight, net.big.weight)
    assert host.fills == 2


def test_another_lora_is_noticed() -> None:
    net, vbar = dynamic()
    host = Host()
    run = paged(net, vbar, host)
    with run.held():
        pass
    host.factor = 3.0
    net.big._v_signature = None  # type: ignore[assignment]
    with run.held() as module:
        assert isinstance(module, Net)
        assert torch.equal(module.big.weight, 3.0 * net.big.weight)


def test_a_replaced_resident_weight_keeps_its_address() -> None:
    """Recordings of a graph's calls need it at one address, and it may also change in place."""
    net, vbar = dynamic()
    run = paged(net, vbar, Host())
    with run.held() as module:
        assert isinstance(module, Net)
        address = module.small.weight.data_ptr()
    net.small.weight = torch.nn.Parameter(torch.full((64,), 5.0), requires_grad=False)
    for value in (5.0, 7.0):
        net.small.weight.fill_(value)
        with run.held() as module:
            assert isinstance(module, Net)
            assert module.small.weight.eq(value).all()
            assert module.small.weight.data_ptr() == address
    run.release()
    later = paged(net, vbar, Host())
    with later.held() as module:
        assert isinstance(module, Net)
        assert module.small.weight.data_ptr() == address


def test_no_room_is_refused_and_nothing_stays_pinned() -> None:
    net, vbar = dynamic()
    vbar.room = 0
    with paged(net, vbar, Host()).held() as held:
        assert held == Refused(NoRoomForWeights())
    assert not any(vbar.pins)


def test_weights_outside_the_pages_are_refused() -> None:
    net, vbar = dynamic()
    host = Host()
    host.moves = True
    with paged(net, vbar, host).held() as held:
        assert isinstance(held, Refused)
        assert "weight of big" in held.text
    assert not any(vbar.pins)


def test_pins_that_do_not_nest_are_refused() -> None:
    net, vbar = dynamic(nesting=False)
    with paged(net, vbar, Host()).held() as held:
        assert held == Refused(PagedWeights())


def test_the_skeleton_is_the_module_without_paging() -> None:
    net, vbar = dynamic()
    del net.big._parameters["bias"]  # as the host's lazy layers leave a missing bias: a plain attribute
    net.big.__dict__["bias"] = None
    made = paged(net, vbar, Host()).skeleton
    plain = Net().requires_grad_(False)
    assert fingerprint.digest(made) == fingerprint.digest(plain)
    assert all(p.is_meta for p in made.parameters())
    rebuilt = skeleton.load(skeleton.dump(made), torch.device("cpu"))
    assert not hasattr(rebuilt.big, "_v")


def test_the_hosts_captured_blocks_are_no_architecture() -> None:
    """ComfyUI 0.33 marks blocks that it pages together, and keeps a CUDA graph of each on the block."""
    net, vbar = dynamic()
    before = paged(net, vbar, Host()).skeleton
    for block in (net, net.big):
        block._v_block = net.big._v
        block._v_block_faulted = True  # type: ignore[assignment]
        block._comfy_graph = {"graph": object(), "signature": b""}  # type: ignore[assignment]
        block._comfy_cross_step_state = object()  # type: ignore[assignment]
    made = paged(net, vbar, Host(), version=2).skeleton
    assert fingerprint.digest(made) == fingerprint.digest(before)
    assert vars(made.big).keys() == vars(before.big).keys()  # type: ignore[arg-type]


def test_nothing_stays_after_a_run() -> None:
    net, vbar = dynamic()
    run = paged(net, vbar, Host())
    with run.held():
        pass
    run.release()
    gone = weakref.ref(net)
    small = weakref.ref(net.small.weight)
    del net, run
    gc.collect()
    assert gone() is None
    assert small() is None


def test_a_small_weight_in_the_files_dtype_is_cast() -> None:
    net, vbar = dynamic()
    net.small.weight = torch.nn.Parameter(net.small.weight.double() + 0.5, requires_grad=False)
    net.small.weight_comfy_model_dtype = torch.float32  # type: ignore[assignment]
    net.small.comfy_cast_weights = True  # type: ignore[assignment]
    run = paged(net, vbar, Host())
    assert run.skeleton.small.weight.dtype == torch.float32  # type: ignore[union-attr]
    with run.held() as module:
        assert isinstance(module, Net)
        assert module.small.weight.dtype == torch.float32
        assert torch.equal(module.small.weight, net.small.weight.float())


def test_a_module_in_another_state_has_a_new_skeleton() -> None:
    net, vbar = dynamic()
    before = paged(net, vbar, Host()).skeleton
    assert paged(net, vbar, Host()).skeleton is before
    net.small.eps = 0.5
    after = paged(net, vbar, Host(), version=2).skeleton
    assert after.get_submodule("small").eps == 0.5  # type: ignore[attr-defined]
    assert fingerprint.digest(after) != fingerprint.digest(before)


def test_a_bound_method_is_no_part_of_a_skeleton() -> None:
    net, vbar = dynamic()
    net.small.forward = net.small.forward  # type: ignore[method-assign]
    assert "forward" not in vars(paged(net, vbar, Host()).skeleton.get_submodule("small"))


def test_pages_make_room_for_another_process() -> None:
    net, vbar = dynamic()
    run = paged(net, vbar, Host())
    model = SimpleNamespace(dynamic_vbars={torch.device("cpu"): vbar})
    patcher = SimpleNamespace(model=model, load_device=torch.device("cpu"))
    make_room = paged_weights.room_maker(patcher)
    assert make_room is not None
    with run.held():
        before = vbar.loaded_size()
        make_room(PAGE)  # pinned
        assert vbar.loaded_size() == before > PAGE
    make_room(before + 1)  # all of them would not suffice
    assert vbar.loaded_size() == before
    make_room(PAGE + 1)
    assert vbar.loaded_size() == before - 2 * PAGE
    vbar.prioritize()  # the next run begins
    with run.held() as module:
        assert isinstance(module, Net)
        assert torch.equal(module.big.weight, net.big.weight)
    alive = weakref.ref(vbar)
    del vbar, run, model, patcher, net, module
    gc.collect()
    assert alive() is None
    make_room(PAGE)


def test_a_model_without_pages_makes_no_room() -> None:
    for vbars in ({}, {"dynamic_vbars": {}}):
        model = SimpleNamespace(**vbars)
        assert paged_weights.room_maker(SimpleNamespace(model=model, load_device=torch.device("cpu"))) is None
