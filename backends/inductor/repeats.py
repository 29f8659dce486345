"""Tracing a model that repeats itself: the third of equal blocks is written down like the first two, not traced.

Tracing is slow because every operation is run on fake tensors whose sizes are expressions; SDXL's UNet is 3,758
operations, 3,360 of which are the same two blocks 70 times. Blocks count as equal when they have the same structure,
are called with tensors of the same sizes, and the first two of them were traced to the same operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...common.config_text import describe
from ...common.errors import LoadError
from ...common.log import logger
from ...common.replaced import replaced
from ...common.torch_private import require

log = logger("compiler")

_SMALLEST = 8  # submodules of a block that is worth it
_TABLES = ("_parameters", "_buffers", "_modules")  # what they hold is looked at, not they
_TRACER = "torch.fx.experimental.proxy_tensor._ModuleStackTracer"
_PROXIES = "torch.fx.experimental.proxy_tensor"


@contextlib.contextmanager
def traced_once() -> Iterator[None]:
    """Have torch.export trace equal blocks twice at most while this lasts.

    Where this torch traces in another way, every block is traced.
    """
    try:
        tracer = require(_TRACER)
        usual = require(f"{_TRACER}.call_module")
        require(f"{_TRACER}.path_of_module")
        for used in ("get_proxy_slot", "track_tensor_tree", "disable_proxy_modes_tracing"):
            require(f"{_PROXIES}.{used}")
    except LoadError as error:
        log.warning("every block is traced: %s", error)
        yield
        return
    repeats = _Repeats(usual)

    def call_module(self: Any, m: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        return repeats.call(self, m, forward, args, kwargs)

    with replaced(tracer, "call_module", call_module):
        yield


class _Unclear(Exception):
    """A call does something that only tracing it can tell."""


@dataclass(frozen=True)
class _Trace:
    """What one call of a block was traced to.

    Attributes:
        path: of the block in the model.
        nodes: its operations in order.
        roles: for each operand from outside what it is to the block: its n-th tensor, its weight of a name, or else
            the node itself.
        results: the nodes of the tensors that it returns; a number where that is the n-th tensor it was given.
        values: those tensors, None for the latter.
        spec: how they are put together.
    """

    path: str
    nodes: tuple[Node, ...]
    roles: dict[Node, Any]
    results: tuple[Node | int, ...]
    values: tuple[Any, ...]
    spec: Any

    def text(self) -> list[str]:
        """Write what it computes, without names."""
        names = {n: f"other {n.name}" if isinstance(role, Node) else str(role) for n, role in self.roles.items()}
        text = []
        for number, node in enumerate(self.nodes):
            operands = map_arg((node.args, node.kwargs), lambda n: names[n])
            names[node] = f"%{number}"
            text.append(f"{node.op} {node.target} {operands} {_layout(node.meta.get('val'))}")
        results = [result if isinstance(result, int) else names[result] for result in self.results]
        return [*text, f"{results} {self.spec}"]


class _Repeats:
    """The blocks of one model under capture."""

    def __init__(self, usual: Callable[..., Any]) -> None:
        self._usual = usual
        self._tracer: Any = None  # of this capture; of another one nothing counts
        self._traces: dict[Any, list[_Trace | None]] = {}
        self._equal: dict[Any, bool] = {}

    def call(self, tracer: Any, module: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace a call, or write it down like an earlier one; return its result."""
        # Tracing puts a proxy of its own before each module where a model has one at two paths; slow to look through.
        behind: Any = getattr(type(module), "get_base", None)
        plain: torch.nn.Module = module if behind is None else behind(module)
        if sum(1 for _ in plain.modules()) < _SMALLEST or not hasattr(tracer, "module_stack"):
            return self._usual(tracer, module, forward, args, kwargs)
        if tracer is not self._tracer:
            self._tracer, self._traces, self._equal = tracer, {}, {}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (_structure(plain), str(spec), *map(_traits, leaves))
        traces = self._traces.setdefault(key, [])
        if len(traces) == 2:
            first, second = traces
            if key not in self._equal:
                self._equal[key] = first is not None and second is not None and first.text() == second.text()
            if self._equal[key] and first is not None:
                with contextlib.suppress(_Unclear):
                    return _write_down(tracer, module, leaves, first)
            return self._usual(tracer, module, forward, args, kwargs)
        last = _last_node(tracer.graph)
        result = self._usual(tracer, module, forward, args, kwargs)
        try:
            if any(a is not b for a, b in zip(leaves, pytree.tree_leaves((args, kwargs)), strict=True)):
                raise _Unclear
            traces.append(_read(tracer, module, leaves, last, result))
        except (_Unclear, ValueError):
            traces.append(None)
        return result


def _structure(module: torch.nn.Module) -> tuple[Any, ...]:
    """Classes, attributes and the weights' layouts, of the module and all below."""
    modules: list[Any] = []
    for name, child in module.named_modules(remove_duplicate=False):
        plain = {key: _attribute(value) for key, value in vars(child).items() if key not in _TABLES}
        cls = type(child)  # torch may have put one of its own, with the same names, before the module's
        modules.append((name, cls.__module__, cls.__qualname__, cls.forward, *sorted(plain.items())))
    weights = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return (*modules, *((name, _layout(weight)) for name, weight in weights))


def _attribute(value: Any) -> str:
    """What makes an attribute equal to another module's: its value where that is plain, else that it is the same."""
    if isinstance(value, set | frozenset):
        return str(sorted(map(str, value)))
    if callable(value) and not isinstance(value, type):
        return str(id(getattr(value, "__func__", value)))
    text = describe(value)
    if text is not None:
        return text
    return f"{type(value)} {id(value) if not hasattr(value, '__len__') or len(value) else 0}"


def _traits(leaf: Any) -> Any:
    """Of an argument, what its effect may depend on. Numbers that count blocks may differ: two were compared."""
    if isinstance(leaf, torch.Tensor):
        return _layout(leaf)
    if isinstance(leaf, bool | str | float | None):
        return leaf
    return str(leaf) if isinstance(leaf, torch.SymInt) else type(leaf)


def _layout(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        offset = value.storage_offset()
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {offset} {value.device}"
    return str([_layout(v) for v in value]) if isinstance(value, list | tuple) else str(value)


def _last_node(graph: Graph) -> Node | None:
    return next(iter(reversed(graph.nodes)), None)


def _node_of(tensor: Any, tracer: Any) -> Node | None:
    slot = require(f"{_PROXIES}.get_proxy_slot")(tensor, tracer, None)
    return slot.proxy.node if slot is not None else None


def _path(tracer: Any, module: torch.nn.Module) -> str:
    """The block's path in the model. Raises _Unclear for one that is not registered there, as in a plain list."""
    try:
        return str(tracer.path_of_module(module))
    except NameError as error:
        raise _Unclear from error


def _nodes_by_role(tracer: Any, module: torch.nn.Module, leaves: Sequence[Any]) -> dict[Any, Node]:
    """The nodes of what a call is given, by what they are to it. Raises _Unclear where one has two roles."""
    nodes: dict[Any, Node] = {}
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for number, tensor in enumerate(tensors):
        node = _node_of(tensor, tracer)
        if node is None:
            raise _Unclear
        nodes[number] = node
    weights = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, weight in weights:
        node = _node_of(weight, tracer)
        if node is None:
            raise _Unclear
        nodes[name] = node
    if len(set(nodes.values())) < len(nodes):
        raise _Unclear
    return nodes


def _read(tracer: Any, module: torch.nn.Module, leaves: Sequence[Any], last: Node | None, result: Any) -> _Trace:
    """What the call that has just ended was traced to."""
    nodes: list[Node] = []
    node = last.next if last is not None else next(iter(tracer.graph.nodes))
    while node.op != "root":
        if node.op != "call_function":
            raise _Unclear
        nodes.append(node)
        node = node.next
    role_of = {node: role for role, node in _nodes_by_role(tracer, module, leaves).items()}
    inside = set(nodes)
    outside = dict.fromkeys(operand for n in nodes for operand in n.all_input_nodes if operand not in inside)
    roles = {operand: role_of.get(operand, operand) for operand in outside}
    results: list[Node | int] = []
    values: list[Any] = []
    returned, spec = pytree.tree_flatten(result)
    for value in returned:
        made = _node_of(value, tracer) if isinstance(value, torch.Tensor) else None
        if made in inside:
            results.append(made)
            values.append(value)
        elif made is not None and isinstance(role_of.get(made), int):
            results.append(role_of[made])
            values.append(None)
        else:
            raise _Unclear
    return _Trace(_path(tracer, module), tuple(nodes), roles, tuple(results), tuple(values), spec)


def _write_down(tracer: Any, module: torch.nn.Module, leaves: Sequence[Any], trace: _Trace) -> Any:
    """Add to the graph what tracing the call would have added; its result."""
    node_of = _nodes_by_role(tracer, module, leaves)
    path = _path(tracer, module)
    made: dict[Node, Node] = {
        operand: role if isinstance(role, Node) else node_of[role] for operand, role in trace.roles.items()
    }
    around = {
        key: (path_around, f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else cls)
        for key, (path_around, cls) in tracer.module_stack.items()
    }
    for node in trace.nodes:
        copy = tracer.graph.node_copy(node, made.__getitem__)
        below = _moved(node.meta.get("nn_module_stack", {}), trace.path, path)
        copy.meta = {**node.meta, "nn_module_stack": {**around, **below}}
        made[node] = copy
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    results = []
    for result, value in zip(trace.results, trace.values, strict=True):
        if isinstance(result, int):
            results.append(tensors[result])
            continue
        with require(f"{_PROXIES}.disable_proxy_modes_tracing")():
            output = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        require(f"{_PROXIES}.track_tensor_tree")(output, Proxy(made[result], tracer), constant=None, tracer=tracer)
        results.append(output)
    return pytree.tree_unflatten(results, trace.spec)


def _moved(stack: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Of a record of the modules around an operation, a block and those in it, with another block's path."""
    return {
        key.replace(old, new, 1): (new + path[len(old) :], *rest)
        for key, (path, *rest) in stack.items()
        if path == old or path.startswith(f"{old}.")
    }
