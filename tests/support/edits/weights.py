"""Edits of a live module's weights and parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .edit import Dropped, Edit, Old, Roles, undoing


def other(tensor: torch.Tensor, seed: int = 3) -> torch.Tensor:
    """A plain tensor like this one, with other values of the same size."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(tensor.shape, generator=generator)
    return tensor.detach() + noise.to(tensor) * tensor.detach().abs().mean().clamp(min=0.1)


def retrained(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module with other weights."""
    found = copy.deepcopy(module)
    for parameter in found.parameters():
        parameter.data = other(parameter.data)
    return found


def parent_of(module: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    """The module that has a submodule, and its name there."""
    parent, _, name = path.rpartition(".")
    return module.get_submodule(parent), name


def _assigned(parent: Any, name: str, child: torch.nn.Module) -> None:
    if name.isdigit():
        parent[int(name)] = child
    else:
        setattr(parent, name, child)


def _registered(parent: torch.nn.Module, name: str, child: torch.nn.Module) -> None:
    parent.register_module(name, child)


def _written(parent: torch.nn.Module, name: str, child: torch.nn.Module) -> None:
    parent._modules[name] = child


def exchanged(role: str, put: Callable[[Any, str, torch.nn.Module], None] = _assigned) -> Edit:
    """A part gives way to one of the same class and shapes with other weights."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        parent, name = parent_of(module, roles[role])
        before = getattr(parent, name)
        spare, new = before, retrained(before)
        if isinstance(old, Dropped):
            spare = copy.deepcopy(before)
        old.append(before)
        del before
        put(parent, name, new)
        yield
        put(parent, name, spare)

    return edit


def _set_parameter(owner: torch.nn.Module, new: torch.Tensor) -> None:
    owner.weight = torch.nn.Parameter(new, requires_grad=False)


def _register_parameter(owner: torch.nn.Module, new: torch.Tensor) -> None:
    owner.register_parameter("weight", torch.nn.Parameter(new, requires_grad=False))


def _write_parameter(owner: torch.nn.Module, new: torch.Tensor) -> None:
    owner._parameters["weight"] = torch.nn.Parameter(new, requires_grad=False)


def _load_parameter(owner: torch.nn.Module, new: torch.Tensor) -> None:
    owner.load_state_dict({**owner.state_dict(), "weight": new}, assign=True)


def _delete_and_set_parameter(owner: torch.nn.Module, new: torch.Tensor) -> None:
    del owner.weight
    owner.weight = torch.nn.Parameter(new, requires_grad=False)


def _set_data(owner: Any, new: torch.Tensor) -> None:
    owner.weight.data = new


def _set_storage(owner: Any, new: torch.Tensor) -> None:
    with torch.no_grad():
        owner.weight.set_(new)


def _swap_tensors(owner: Any, new: torch.Tensor) -> None:
    torch.utils.swap_tensors(owner.weight, torch.nn.Parameter(new, requires_grad=False))


def _copy_values(owner: Any, new: torch.Tensor) -> None:
    with torch.no_grad():
        owner.weight.copy_(new)


def _gather_anew(owner: Any, new: torch.Tensor) -> None:
    """As what shards weights does: the same tensor, whose memory was freed, and is others' by now."""
    storage = owner.weight.untyped_storage()
    size, new = storage.nbytes(), new.clone()
    storage.resize_(0)
    others = [torch.full((size // 4,), float("nan")) for _ in range(2)]
    storage.resize_(size)
    with torch.no_grad():
        owner.weight.copy_(new)
    del others


REPLACEMENTS: dict[str, Callable[[Any, torch.Tensor], None]] = {
    "parameter set": _set_parameter,
    "parameter registered": _register_parameter,
    "parameter written into the table": _write_parameter,
    "state dict assigned": _load_parameter,
    "parameter deleted and set": _delete_and_set_parameter,
    "data replaced": _set_data,
    "storage replaced": _set_storage,
    "memory freed and taken anew": _gather_anew,
    "tensors swapped": _swap_tensors,
    "values in place": _copy_values,
}


def replaced(role: str, put: Callable[[Any, torch.Tensor], None]) -> Edit:
    """One layer's weight becomes another one."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles[role])
        values = owner.weight.detach().clone()
        old.append(owner.weight)
        old.append(owner.weight.data)
        put(owner, other(owner.weight))
        yield
        put(owner, values)

    return edit


def relaid(change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    """A square weight is read in another way, at the same address."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["square"])
        before = owner.weight.data
        owner.weight.data = change(before)
        assert owner.weight.data_ptr() == before.data_ptr() and owner.weight.shape == before.shape
        yield
        owner.weight.data = before

    return edit


def _transposed(weight: torch.Tensor) -> torch.Tensor:
    return weight.transpose(0, 1)


def _expanded(weight: torch.Tensor) -> torch.Tensor:
    return weight[:1].expand_as(weight)


def _negated(weight: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(weight)


@undoing
def laid_out_anew(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """The same values, stored column by column."""
    owner: Any = module.get_submodule(roles["square"])
    before = owner.weight.data
    old.append(before)
    # Other values, too: a graph that reads the old storage would be right otherwise.
    owner.weight.data = other(before).transpose(0, 1).contiguous().transpose(0, 1)
    yield
    owner.weight.data = before


def _written_as(table: str) -> Callable[[Any, str, Any], None]:
    """Past torch's own registration."""
    return lambda owner, name, value: getattr(owner, table).__setitem__(name, value)


def _bias_added(put: Callable[[Any, str, Any], None]) -> Edit:
    """A bias where the layer had none."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["unbiased"])
        assert owner.bias is None
        put(owner, "bias", torch.nn.Parameter(torch.ones(owner.weight.shape[0]), requires_grad=False))
        yield
        put(owner, "bias", None)

    return edit


@undoing
def bias_removed(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
    """No bias where the layer had one."""
    owner: Any = module.get_submodule(roles["layer"])
    before = owner.bias.detach().clone()
    old.append(owner.bias)
    owner.bias = None
    yield
    owner.bias = torch.nn.Parameter(before, requires_grad=False)


def _no_parameter(table: str, put: Callable[[Any, str, Any], None]) -> Edit:
    """The weight is something else from now on, in another table of the layer's."""

    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["layer"])
        values = owner.weight.detach().clone()
        old.append(owner.weight)
        del owner._parameters["weight"]
        put(owner, "weight", other(values))
        yield
        del getattr(owner, table)["weight"]
        owner.weight = torch.nn.Parameter(values, requires_grad=False)

    return edit


def _computed(attribute: str, put: Callable[[Any, str, Any], None]) -> Edit:
    @undoing
    def edit(module: torch.nn.Module, roles: Roles, old: Old) -> Iterator[None]:
        owner: Any = module.get_submodule(roles["layer"])
        before = vars(owner).get(attribute)
        kept = None if before is None else list(before)
        put(owner, attribute, lambda weight: weight * 0.5 + 0.1)
        yield
        if before is None:
            delattr(owner, attribute)
        else:
            before[:] = kept or []
            setattr(owner, attribute, before)

    return edit


def _set_functions(owner: Any, attribute: str, function: Any) -> None:
    setattr(owner, attribute, [function])


def _append_function(owner: Any, attribute: str, function: Any) -> None:
    if attribute not in vars(owner):
        setattr(owner, attribute, [])
    getattr(owner, attribute).append(function)


# By name. Those of REGISTERED go through torch's registration of parameters, buffers and modules.
REGISTERED: dict[str, Edit] = {
    "block exchanged": exchanged("block"),
    "layer exchanged": exchanged("layer"),
    "deep layer exchanged": exchanged("deep"),
    "layer registered": exchanged("layer", _registered),
    **{
        name: replaced("layer", REPLACEMENTS[name])
        for name in ("parameter set", "parameter registered", "state dict assigned", "parameter deleted and set")
    },
    "deep parameter set": replaced("deep", _set_parameter),
    "bias added": _bias_added(setattr),
    "buffer for a parameter": _no_parameter("_buffers", torch.nn.Module.register_buffer),
}
UNREGISTERED: dict[str, Edit] = {
    "layer written into the table": exchanged("layer", _written),
    "block written into the table": exchanged("block", _written),
    **{name: replaced("layer", put) for name, put in REPLACEMENTS.items() if name not in REGISTERED},
    "deep data replaced": replaced("deep", _set_data),
    "transposed": relaid(_transposed),
    "expanded": relaid(_expanded),
    "negated": relaid(_negated),
    "laid out anew": laid_out_anew,
    "bias removed": bias_removed,  # torch tells nobody of a parameter that becomes None
    "bias written into the table": _bias_added(_written_as("_parameters")),
    "attribute for a parameter": _no_parameter("__dict__", _written_as("__dict__")),
    "weight_function set": _computed("weight_function", _set_functions),
    "weight_function appended": _computed("weight_function", _append_function),
    "bias_function set": _computed("bias_function", _set_functions),
    "bias_function appended": _computed("bias_function", _append_function),
}
# Of a VAE besides.
OF_VAE: dict[str, Edit] = {
    "quant exchanged": exchanged("quant"),
    "quant written into the table": exchanged("quant", _written),
    "quant's parameter set": replaced("quant", _set_parameter),
    "quant's data replaced": replaced("quant", _set_data),
}
# Where it matters whether what was replaced is kept alive.
REPLACING = frozenset({*REGISTERED, *UNREGISTERED}) - {
    "bias added",
    "bias written into the table",
    "values in place",
    "transposed",
    "expanded",
    "negated",
    *(name for name in UNREGISTERED if "_function" in name),
}
