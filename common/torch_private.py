"""torch's private names that several packages need; each is refused in words where this torch lacks it.

`require` gives one by its dotted path. The others: what a module owns, and other tables for it; what torch.compile did
to it; hooks and modes in effect; a tensor's memory; captures with symbolic sizes. The guards of torch's compiled code
are in `torch_guards`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from .errors import LoadError
from .replaced import replaced

OLDEST_TORCH = (2, 8)
COMPILED_CALL = "_compiled_call_impl"  # attribute of a module after `module.compile()`
_ELSEWHERE = (
    f"torch {torch.__version__} keeps a module's weights or hooks elsewhere; use a torch version named in the README."
)


def version() -> tuple[int, int]:
    """Return torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def require(what: str) -> Any:
    """Return what a private name of torch stands for, by its dotted path.

    Raises:
        LoadError: this torch lacks it.
    """
    if version() < OLDEST_TORCH:
        raise LoadError(f"torch {torch.__version__} is too old for AOTInductor graphs; update to 2.8 or newer.")
    target: Any = torch
    for part in what.split(".")[1:]:
        if not hasattr(target, part):  # a submodule that nobody has imported yet
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{target.__name__}.{part}")
        target = getattr(target, part, None)
        if target is None:
            raise LoadError(
                f"torch {torch.__version__} has no {what}, which AOTInductor graphs need; "
                "use a torch version named in the README or set backend to off."
            )
    return target


_required = functools.cache(require)  # for what each call of a graph asks


def writes_to(tensor: torch.Tensor) -> int | None:
    """How often a tensor, its views or what it is a view of were written to in place; None: an inference tensor."""
    return None if tensor.is_inference() else int(tensor._version)


def copy_into(own: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    """Copy tensors into others of their shapes, by as few launches as torch has for it.

    Raises:
        LoadError: this torch lacks what does it.
    """
    _required("torch._foreach_copy_")(own, given)


def without_class(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor over the memory of one whose class gives its operations another meaning.

    Raises:
        LoadError: this torch lacks what gives it.
    """
    with require("torch._C.DisableTorchFunctionSubclass")():
        # By torch's own methods: the class may have others, too.
        plain: torch.Tensor = torch.Tensor.as_subclass(torch.Tensor.detach(tensor), torch.Tensor)
    return plain


def memory_of(tensor: torch.Tensor) -> int:
    """Return an id of the memory that a tensor lies in, also of one that stands for another in a capture."""
    storage_id: int = tensor.untyped_storage()._cdata
    return storage_id


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `torch.compile` wrapped, or the module itself."""
    inner = getattr(module, "_orig_mod", module)
    return inner if isinstance(inner, torch.nn.Module) else module


def is_compiled_by_torch(module: torch.nn.Module) -> bool:
    """Tell whether `torch.compile` wraps a module or `module.compile()` was called, as far as this torch shows it."""
    return unwrapped(module) is not module or vars(module).get(COMPILED_CALL) is not None


def fakes_are_made() -> bool:
    """Tell whether tensors that are made now are fake ones, without memory."""
    mode = _required("torch._C._get_dispatch_mode")(_required("torch._C._TorchDispatchModeKey").FAKE)
    return mode is not None


def fake_tensor_class() -> type:
    """Return the class of tensors without memory. Raises LoadError: this torch lacks it."""
    cls: type = require("torch._subclasses.fake_tensor.FakeTensor")
    return cls


def driver_version() -> str:
    """Return the version of CUDA that the driver knows; empty where there is none, or this torch does not tell."""
    try:
        return str(require("torch._C._cuda_getDriverVersion")())
    except (LoadError, RuntimeError):
        return ""


@contextlib.contextmanager
def without_stack_traces() -> Iterator[None]:
    """Keep tracing from noting where in Python each operation came from while this lasts.

    Only error messages of the compiler's developers speak of that, and it is a tenth of the time that tracing takes.
    Where this torch does it elsewhere, it is noted as ever.
    """
    config: Any = importlib.import_module("torch.fx.config")
    if hasattr(config, "do_not_emit_stack_traces"):
        with replaced(config, "do_not_emit_stack_traces", True):
            yield
        return
    tracer: Any = importlib.import_module("torch.fx.proxy").TracerBase
    if not isinstance(vars(tracer).get("record_stack_traces"), bool):
        yield
        return
    never = property(lambda self: False, lambda self, value: None)  # on the class, for each tracer sets its own
    with replaced(tracer, "record_stack_traces", never):
        yield


# Attributes of every module: what it owns, and what runs around its forward.
TABLES = ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks")


class Tables(NamedTuple):
    """Where a module keeps what it owns itself; changes to these dictionaries are changes to the module."""

    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    children: dict[str, torch.nn.Module | None]


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """Return a module's own table of parameters, for look-ups before every call, where `getattr` is too slow.

    Raises:
        LoadError: this torch keeps it elsewhere.
    """
    try:
        return module.__dict__["_parameters"]
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


parameter_table_of = operator.attrgetter("_parameters")  # the same of a module that is known to have them there


def tables(module: torch.nn.Module) -> Tables:
    """Return all of a module's own tables.

    Raises:
        LoadError: this torch keeps them elsewhere.
    """
    state = module.__dict__
    try:
        return Tables(state["_parameters"], state["_buffers"], state["_modules"])
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


def set_tables(module: torch.nn.Module, new: Tables) -> None:
    """Give a module, which may be a bare object of its class, other tables."""
    module.__dict__.update(_parameters=new.parameters, _buffers=new.buffers, _modules=new.children)


def forget_loading_hooks(module: torch.nn.Module) -> None:
    """Have a module load its weights by the names that they have: hooks may know them by others."""
    module.__dict__["_load_state_dict_pre_hooks"] = {}


def copy_all(targets: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy (and cast) each tensor to its target, hundreds of small ones in a few kernels. All are on one device."""
    if targets:
        with torch.no_grad():
            require("torch._foreach_copy_")(list(targets), list(tensors))


Hooks = dict[int, Any]


def hook_tables(module: torch.nn.Module) -> tuple[Hooks, Hooks]:
    """Return what runs before and after a module's own forward; compiled code would skip it.

    Raises:
        LoadError: this torch keeps its hooks elsewhere, so that nobody can tell.
    """
    state = module.__dict__
    try:
        return state["_forward_pre_hooks"], state["_forward_hooks"]
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


def drop_hooks(module: torch.nn.Module) -> None:
    """Remove all hooks of a module without changing tables that another module may share."""
    hooks = {
        name: type(table)() for name, table in vars(module).items() if "_hooks" in name and isinstance(table, dict)
    }
    vars(module).update(hooks)


def every_modules_hooks() -> tuple[Hooks, Hooks]:
    """Return what runs before and after the forward of every module there is.

    Raises:
        LoadError: this torch keeps these hooks elsewhere.
    """
    prefix = "torch.nn.modules.module._global_forward"
    return _required(f"{prefix}_pre_hooks"), _required(f"{prefix}_hooks")


# Whether a thread has autocast for any device; where this torch does not tell, it may have.
is_any_autocast_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def modes_in_effect() -> bool:
    """Tell whether this thread's operations go through a mode of Python's first, as a profiler's or another pack's.

    Raises:
        LoadError: this torch does not tell.
    """
    if _required("torch._C._len_torch_dispatch_stack")():
        return True
    if not _required("torch._C._len_torch_function_stack")():
        return False
    default_device = _required("torch.utils._device.DeviceContext")  # says where new tensors go, no more
    return any(
        type(mode) is not default_device for mode in _required("torch.overrides._get_current_function_mode_stack")()
    )


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the product of two float8 matrices, each with one scale, plus a bias, in a dtype.

    Raises:
        LoadError: this torch has no such product.
    """
    product: torch.Tensor = require("torch._scaled_mm")(a, b, scale_a, scale_b, bias=bias, out_dtype=dtype)
    return product


def assume(relation: Any) -> None:
    """Tell a capture that a relation between symbolic sizes holds. Whoever calls the graph must see to it."""
    require("torch._check")(relation)


def surely(relation: Any) -> bool:
    """Tell whether a relation between sizes holds for all values that symbolic ones may have; nothing is fixed by it.

    Raises:
        LoadError: this torch cannot tell without fixing a size.
    """
    holds: bool = require("torch.fx.experimental.symbolic_shapes.statically_known_true")(relation)
    return holds


def expression(size: int | torch.SymInt | torch.SymBool) -> Any:
    """Return a symbolic size or condition of a capture as sympy has it; a plain number stays one."""
    return size if isinstance(size, int) else size.node.expr


def in_example(size: torch.SymInt) -> Any:
    """Return the value that a symbolic size has in the example of its capture; None where it has none."""
    return size.node.hint


@contextlib.contextmanager
def contiguous_where_asked() -> Iterator[None]:
    """Copy inputs of operations that ask whether they are contiguous, unless that is known, while this lasts.

    Asking fixes a batch or a length of 1 in a graph that is captured with symbolic sizes. `rms_norm` asks tensors of
    four and five dimensions whether their channels come last, so it gets them with more.

    Raises:
        LoadError: this torch cannot tell without asking.
    """
    is_contiguous = require("torch._prims_common.is_contiguous_or_false")
    functional = torch.nn.functional
    asking = {
        *(torch.Tensor.reshape, torch.Tensor.contiguous, torch.Tensor.flatten),
        *(functional.linear, functional.rms_norm, functional.layer_norm),
        *(functional.conv1d, functional.conv2d, functional.conv3d),
    }

    def normed(func: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        more = range(6 - x.ndim)  # of six dimensions nobody asks that
        for _ in more:
            x = x.unsqueeze(0)
        result = func(x, *args, **kwargs)
        for _ in more:
            result = result.squeeze(0)
        return result

    class Copying(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # Not by its class: while a graph is captured that is another one.
            if func in asking and args and isinstance(args[0], torch.Tensor):
                if not is_contiguous(args[0]):
                    args = (args[0].clone(memory_format=torch.contiguous_format), *args[1:])
                if func is functional.rms_norm and args[0].ndim in (4, 5):
                    return normed(func, *args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    with Copying(), _overlaps_unasked():
        yield


@contextlib.contextmanager
def _overlaps_unasked() -> Iterator[None]:
    """Keep torch from asking whether a tensor that is written to overlaps itself: that fixes sizes of 1, too.

    Eager asks at each call, and has run.
    """
    name = "_debug_has_internal_overlap"
    with replaced(torch, name, lambda tensor: 0) if hasattr(torch, name) else contextlib.nullcontext():
        yield
