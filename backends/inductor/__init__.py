"""PyTorch AOTInductor graphs. This backend alone touches torch's private names, each behind `require`.

Facts this file rests on, each covered by a test:

* A 1-D constant of up to eight elements is written into the code by value unless `always_keep_tensor_constants`
  is set: every other checkpoint would run with the first one's bias.
* `aoti_load_package` probes the CPU's vector ISA by compiling test programs (up to 60 s in a fresh process); the
  loader class does not, but skips the package's target check, so the target is part of our key instead.
* Neither inputs nor constants are checked, and constants are bare addresses: see `shapes.admits` and `binding`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...common import container, memory
from ...common.errors import BindError, CompileError, LoadError, in_brief
from ...common.shapes import ShapeRange
from ...common.torch_private import OLDEST_TORCH, require, version, without_stack_traces
from .. import Availability
from ..cuda_graphs import PROOF_FILE, Replayed
from ..worker_pool import Crew
from . import partition, transfer
from .algebra import quick_strides
from .decompositions import double_by_copies, group_norm, wide_attention
from .repeats import traced_once
from .toolchain import Toolchain, compile_anything, cpp_compiler

log = logging.getLogger("onegraph.compiler")

GRAPH_FILE = "graph.aoti"  # a graph compiled whole
PLAN_FILE = "plan.json"  # or how its parts make it up, which are files of their own
MOST_HELPERS = 3
MOST_HELPERS_OF_GPUS = 7
_HOPPER = 9  # compute capability of the cards that the choices for attention were measured on
_LONGEST_ROW = 2048  # elements; see `_own_choices`
_WORTH_HELP = 1000  # weights; SDXL's UNet has 1680, its VAE 248
# See `regions.cut`. On a CPU a part costs 3.5 s and an operation 0.06 s, on a GPU (H200, eight processes) 6 and 0.04 s.
_PART_COSTS = {"cpu": 60, "cuda": 150}
_OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.use_runtime_constant_folding": False,
    "always_keep_tensor_constants": True,
}
# On a GPU: no probing of the CPU's vector instructions (25 to 38 s of a compile), channels-last convolutions also where
# sizes are symbolic, and the wrapper's C++ code without optimisation (13 s instead of 41 s for SDXL, no slower there).
_CUDA_OPTIONS = {
    "cpp.vec_isa_ok": False,
    "force_layout_optimization": True,
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
# oneDNN's convolutions on channels-last tensors are no faster here than on plain ones and twice as far from a float64
# result (measured on a VAE decoder: 3.3e-6 against 1.6e-6), so graphs for the CPU keep eager's layout.
# The number of threads is read at each call: code for two threads that runs on eight writes past its buffers.
# Headers are not precompiled: that takes 8 s and 300 MB, and saves 2 s for each of the two or three parts.
_CPU_OPTIONS = {
    "layout_optimization": False,
    "cpp.dynamic_threads": True,
    "aot_inductor.precompile_headers": False,
}
_ISA_PREFIXES = (
    "sse",
    "ssse",
    "avx",
    "amx",
    "fma",
    "bmi",
    "f16c",
    "vaes",
    "vpclmul",
    "gfni",
    "sha_ni",
    "adx",
    "popcnt",
)
_ISA_NAMES = ("abm", "aes", "pclmulqdq", "movbe", "clwb", "clflushopt", "rdseed", "rdpid", "xsave", "fsgsbase")


_ELSEWHERE = (
    f"torch {torch.__version__} keeps a module's weights or hooks elsewhere; use a torch version named in the README."
)


class Tables(NamedTuple):
    """Where a module keeps what it owns itself; changes to these dictionaries are changes to the module."""

    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    children: dict[str, torch.nn.Module | None]


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """A module's own table of parameters, for look-ups before every call, where `getattr` is too slow.

    Raises:
        LoadError: this torch keeps it elsewhere.
    """
    try:
        return module.__dict__["_parameters"]
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


def tables(module: torch.nn.Module) -> Tables:
    """All of a module's own tables. Raises LoadError as `own_parameters` does."""
    state = module.__dict__
    try:
        return Tables(state["_parameters"], state["_buffers"], state["_modules"])
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


def set_tables(module: torch.nn.Module, new: Tables) -> None:
    """Give a module, which may be a bare object of its class, other tables."""
    module.__dict__.update(_parameters=new.parameters, _buffers=new.buffers, _modules=new.children)


def copy_all(places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Copy (and cast) each tensor to its place, hundreds of small ones in a few kernels. All are on one device."""
    if places:
        with torch.no_grad():
            require("torch._foreach_copy_")(list(places), list(tensors))


Hooks = dict[int, Any]


def hook_tables(module: torch.nn.Module) -> tuple[Hooks, Hooks]:
    """What runs before and after a module's own forward; compiled code would skip it.

    Raises:
        LoadError: this torch keeps its hooks elsewhere, so that nobody can tell.
    """
    state = module.__dict__
    try:
        return state["_forward_pre_hooks"], state["_forward_hooks"]
    except KeyError as error:
        raise LoadError(_ELSEWHERE) from error


def every_modules_hooks() -> tuple[Hooks, Hooks]:
    """The same for hooks that run with every module there is. Raises LoadError as `hook_tables` does."""
    place = "torch.nn.modules.module._global_forward"
    return require(f"{place}_pre_hooks"), require(f"{place}_hooks")


def modes_in_effect() -> bool:
    """Whether this thread's operations go through a mode of Python's first, as a profiler's or another pack's.

    Raises:
        LoadError: this torch does not tell.
    """
    if require("torch._C._len_torch_dispatch_stack")():
        return True
    if not require("torch._C._len_torch_function_stack")():
        return False
    default_device = require("torch.utils._device.DeviceContext")  # says where new tensors go, no more
    return any(
        type(mode) is not default_device for mode in require("torch.overrides._get_current_function_mode_stack")()
    )


@functools.cache
def _cpu_features() -> str:
    """The CPU's instruction sets that the compiler may use (it builds for the native CPU)."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags = [f for f in value.split() if f.startswith(_ISA_PREFIXES) or f in _ISA_NAMES]
                return " ".join(sorted(flags) if key.strip() == "flags" else sorted(value.split()))
    return f"{platform.processor()} {torch.backends.cpu.get_cpu_capability()}"


@contextlib.contextmanager
def _fast_attention(capability: int) -> Iterator[None]:
    """cuDNN's attention first, where it is known to be faster.

    A step of SDXL's UNet (1024x1024, batch 2) spends 7.2 ms in FlashAttention 2 and 4.6 in cuDNN's on an H200.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if capability != _HOPPER:
        yield
        return
    first = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(first, set_priority=True):
        yield


@contextlib.contextmanager
def _own_decompositions(capability: int) -> Iterator[None]:
    """Inductor's table of decompositions with ours in it."""
    require("torch._inductor.lowering")  # when it is loaded it insists that attention is not decomposed
    table = require("torch._inductor.decomposition").decompositions
    aten = torch.ops.aten
    ours: dict[Any, Any] = {aten.native_group_norm.default: group_norm}
    if capability == _HOPPER:
        ours[aten._scaled_dot_product_efficient_attention.default] = wide_attention
    before = {operation: table[operation] for operation in ours if operation in table}
    table.update(ours)
    try:
        yield
    finally:
        for operation in ours:
            del table[operation]
        table.update(before)


@contextlib.contextmanager
def _own_choices() -> Iterator[None]:
    """Rows of up to 2048 elements are reduced at once; the compiler's own limit of 1024 makes two passes over more.

    SDXL's 210 layer norms are over 640 and 1280 elements.
    """
    handlers = require("torch._inductor.virtualized.V")
    require("torch._inductor.virtualized.V.set_choices_handler")
    usual_choices = require("torch._inductor.choices.InductorChoices")
    usual = require("torch._inductor.choices.InductorChoices.should_use_persistent_reduction")
    inner = require("torch._inductor.runtime.hints.ReductionHint.INNER")
    require("torch._inductor.codegen.simd_kernel_features.SIMDKernelFeatures.get_reduction_hint")
    require("torch._inductor.sizevars.SizeVarAllocator.statically_known_leq")

    class Choices(usual_choices):  # type: ignore[misc, valid-type]
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            decided = bool(usual(features, cooperative_reduction))
            if decided or cooperative_reduction or features.get_reduction_hint() != inner:
                return decided
            return bool(handlers.graph.sizevars.statically_known_leq(features.reduction_numel, _LONGEST_ROW))

    with handlers.set_choices_handler(Choices()):
        yield


_NATIVE = ("march=", "mcpu=", "mtune=")
_BASELINES = {"x86_64": "march=x86-64", "amd64": "march=x86-64", "aarch64": "march=armv8-a"}


@contextlib.contextmanager
def _own_flags(device: torch.device) -> Iterator[None]:
    """The C++ compiler's flags where torch has no option for them; they are changed where they are put together.

    For a GPU, C++ only launches kernels: built for the least CPU of this machine's kind instead of this very one it is
    no slower, and any machine with that card runs it. For a CPU, kernels at -O2 take a third of the time that they take
    at -O3, and give the same bits as fast (0.96 to 0.99 of the time of a call): their loops are vectorised already.
    Four fifths of a part's library are symbols for debuggers, which are left out where the linker can.
    """
    builder = require("torch._inductor.cpp_builder")
    usual = require("torch._inductor.cpp_builder._get_optimization_cflags")
    baseline = _BASELINES.get(platform.machine().lower())

    def flags(*args: Any, **kwargs: Any) -> Any:
        compiling, linking = usual(*args, **kwargs)
        if sys.platform == "linux":
            linking = [*linking, "s"]
        if device.type == "cpu":
            return ["O2" if flag == "O3" else flag for flag in compiling], linking
        if baseline is None:
            return compiling, linking
        return [*(flag for flag in compiling if not flag.startswith(_NATIVE)), baseline], linking

    builder._get_optimization_cflags = flags
    try:
        yield
    finally:
        builder._get_optimization_cflags = usual


def _point(aliases: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> None:
    """Have the alias of that name, made at first, show a tensor's memory without owning it.

    A loader keeps a reference to every tensor that it was ever given, so a weight itself would outlive its model.
    """
    storage = require("torch._C._construct_storage_from_data_pointer")
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    with torch.inference_mode(False), torch.no_grad():
        if name not in aliases:
            aliases[name] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory_of = storage(tensor.data_ptr(), tensor.device, extent * tensor.element_size())
        aliases[name].set_(memory_of, 0, tensor.shape, tensor.stride())


def _options(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        return {**_OPTIONS, **_CUDA_OPTIONS}
    # Named, because the code depends on it and copies of this process have one thread each.
    return {**_OPTIONS, **_CPU_OPTIONS, "cpp.threads": torch.get_num_threads()}


def _toolchain() -> Toolchain:
    from blake3 import blake3

    # Where the compiling process was told to; asking torch, where it was not, takes importing Inductor. Machines may
    # share the folder, and what is in it is built for the native CPU.
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or require("torch._inductor.runtime.cache_dir_utils.cache_dir")()
    return Toolchain(Path(chosen) / "onegraph" / blake3(_cpu_features().encode()).hexdigest(length=6))


_ORDER_FILE = "parts.json"  # of a compile under way: the parts that helpers may take, largest first
_POLL_SECONDS = 0.05
_WHOLE = -1  # number of the result of a graph that is one part


@dataclass(frozen=True)
class _Placed:
    """One part of a graph at its place, with a loader of its own because a loader knows one set of weights."""

    loader: Any
    weights: Mapping[str, str]  # the part's name -> the graph's
    inputs: tuple[int, ...] | None  # None: the graph's own
    outputs: tuple[int, ...]
    gone: tuple[int, ...]  # values that nothing needs afterwards
    aliases: dict[str, torch.Tensor] = field(default_factory=dict)  # what the loader was given, by its own names


class InductorRunner:
    """Loaded AOTInductor packages, run one after the other, whose constants live elsewhere."""

    reads_in_place = True

    def __init__(self, parts: Sequence[_Placed], result: int, replays: bool) -> None:
        self._parts = tuple(parts)
        self._result = result
        self._names = [*dict.fromkeys(name for part in parts for name in part.weights.values())]
        self._bound: dict[str, int] | None = None  # addresses by name
        self.replayed = Replayed(self._run, replays)

    @property
    def held_bytes(self) -> int:
        """Activations are shared and freed as in eager; only recordings keep theirs."""
        return self.replayed.held_bytes

    def constant_names(self) -> list[str]:
        return self._names

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        missing = [n for n in self._names if n not in tensors]
        if missing:
            raise BindError(f"The model lacks the weight {missing[0]} that the graph reads; it runs eager instead.")
        addresses = {name: tensors[name].data_ptr() for name in self._names}
        if addresses == self._bound:
            return  # the graph knows nothing else of its weights, and CUDA graphs of it stay right
        before, self._bound = self._bound or {}, None
        self.replayed.clear()
        for part in self._parts:
            moved = {s: n for s, n in part.weights.items() if s not in part.aliases or before.get(n) != addresses[n]}
            for short, name in moved.items():
                _point(part.aliases, short, tensors[name])
            # use_inactive=False, check_full_update=False, user_managed=True: the graph keeps the addresses only. The
            # loader never lets go of a tensor that it was given, so it gets the same aliases each time.
            part.loader.load_constants({short: part.aliases[short] for short in moved}, False, False, True)
        self._bound = addresses

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.replayed(*inputs)

    def _run(self, *inputs: torch.Tensor) -> torch.Tensor:
        values = dict(enumerate(inputs))
        for part in self._parts:
            given = list(inputs) if part.inputs is None else [values[number] for number in part.inputs]
            for number in part.gone:
                values.pop(number, None)  # the last reference is then the list's, which boxed_run empties
            values.update(zip(part.outputs, part.loader.boxed_run(given), strict=True))
        return values[self._result]

    def close(self) -> None:
        self.replayed.clear()
        self._bound = None


def _part_file(kind: int) -> str:
    return f"part{kind}.aoti"


def _compile_whole(exported: torch.export.ExportedProgram, options: Mapping[str, Any], folder: Path) -> None:
    package = folder / "graph.pt2"  # the packager insists on the suffix; ComfyUI would list it as a model
    require("torch._inductor").aoti_compile_and_package(
        exported, package_path=str(package), inductor_configs=dict(options)
    )
    package.rename(folder / GRAPH_FILE)


def _compile_part(module: torch.fx.GraphModule, options: Mapping[str, Any], folder: Path, kind: int) -> None:
    """The same for one part, whose placeholders carry the fake tensors that the export ended with."""
    examples = tuple(node.meta["val"] for node in module.graph.nodes if node.op == "placeholder")
    # Inductor would name its folder after the part's code, which parts of different sizes share.
    place = {"aot_inductor.package": True, "aot_inductor.output_path": str(folder / f"part{kind}")}
    files = require("torch._inductor").aot_compile(module, examples, options={**options, **place})
    package = folder / f"part{kind}.pt2"
    require("torch._inductor.package").package_aoti(str(package), files)
    package.rename(folder / _part_file(kind))


@contextlib.contextmanager
def _settings(device: torch.device) -> Iterator[None]:
    """How this backend has Inductor compile; what is changed for that is as before afterwards."""
    with contextlib.ExitStack() as settings:
        settings.enter_context(_own_flags(device))
        settings.enter_context(_toolchain().in_use())
        if device.type == "cpu":  # Triton's code generation does not ask for strides
            settings.enter_context(quick_strides())
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)[0]
            settings.enter_context(_own_decompositions(capability))
            settings.enter_context(_own_choices())
            settings.enter_context(_fast_attention(capability))
        yield


def _parcel_file(kind: int) -> str:
    return f"part{kind}.graph"


def _hand_out(modules: Sequence[torch.fx.GraphModule], order: Sequence[int], folder: Path) -> None:
    """Let helpers have the parts. Where that cannot be, this process compiles them all."""
    try:
        for kind in order:
            (folder / _parcel_file(kind)).write_bytes(transfer.dump(modules[kind]))
    except Exception as error:  # of pickling, which may raise anything
        log.warning("one process compiles all parts, for they can't be handed out: %s", in_brief(error), exc_info=True)
        return
    complete = folder / f"{_ORDER_FILE}.partial"
    complete.write_text(json.dumps([*order]), encoding="utf-8")
    complete.replace(folder / _ORDER_FILE)


class InductorBackend:
    """Compiles with `torch._inductor.aoti_compile_and_package`; runs without a compiler."""

    name = "inductor"
    rebuilds = False

    def can_run(self, device: torch.device) -> Availability:
        if version() < OLDEST_TORCH:
            return Availability(
                False, f"torch {torch.__version__} is older than 2.6, the first with AOTInductor packages"
            )
        if device.type not in ("cpu", "cuda"):
            return Availability(False, f"AOTInductor graphs run on CPU and CUDA devices, not on {device.type}")
        return Availability(True, "")

    def can_compile(self, device: torch.device) -> Availability:
        runs = self.can_run(device)
        if not runs.ok:
            return runs
        if cpp_compiler() is None:
            wanted = os.environ.get("CXX") or "g++ or clang++"
            return Availability(False, f"no C++ compiler ({wanted}) on PATH; install one, for instance the package g++")
        return Availability(True, f"C++ compiler {cpp_compiler()}")

    def supports(self, shapes: ShapeRange) -> bool:
        return True

    def target(self, device: torch.device) -> dict[str, str]:
        from blake3 import blake3

        target = {
            "torch": torch.__version__,
            "platform": platform.system().lower(),
            "machine": platform.machine(),
            "device": device.type,
        }
        if device.type == "cuda":
            # Not the CPU: what runs there is built for the least of its kind, see `_own_flags`.
            major, minor = torch.cuda.get_device_capability(device)
            return target | {"cuda": str(torch.version.cuda), "capability": f"{major}.{minor}"}
        return target | {"cpu": blake3(_cpu_features().encode()).hexdigest(length=6)}

    @contextlib.contextmanager
    def capture_settings(self) -> Iterator[None]:
        """Sizes of 1 stay symbolic, so that one graph serves batch 1 and more, and any context length."""
        import torch.fx.experimental._config as config

        if not hasattr(config, "backed_size_oblivious"):
            raise CompileError(
                f"torch {torch.__version__} cannot keep a batch of one symbolic; update to 2.8 or newer to compile."
            )
        oblivious = config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
        with oblivious, without_stack_traces(), traced_once():
            yield

    def helpers(self, weights: int, device: torch.device) -> int:
        """Each takes about 2 GiB, and on a GPU 0.6 GiB there."""
        cpu = torch.device("cpu")
        if device.type == "cpu":  # copies of the compiling process
            return max(0, min(MOST_HELPERS, container.cores() - 1, memory.available_bytes(cpu) // (2 << 30)))
        if weights < _WORTH_HELP:
            return 0
        room = [MOST_HELPERS_OF_GPUS, container.cores() // 2 - 1, memory.available_bytes(cpu) // (4 << 30)]
        room.append(memory.available_bytes(device) // (3 << 30))
        return max(0, min(room))

    def prepare(self, device: torch.device, helpers: int) -> None:
        with _own_flags(device):
            _toolchain().prepare(_options(device), device)
        if device.type == "cuda":
            with contextlib.suppress(LoadError):  # a compile starts them as well, when it comes to its first kernel
                start = require("torch._inductor.async_compile.maybe_warm_pool")
                config = require("torch._inductor.config")
                if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
                    config.compile_threads = max(4, container.cores() // (1 + helpers))
                start()

    def compile(
        self,
        exported: torch.export.ExportedProgram,
        inputs: Sequence[torch.Tensor],
        folder: Path,
        crew: Crew | None = None,
    ) -> list[str]:
        crew = crew or Crew(folder)
        device = inputs[0].device
        options = _options(device)
        try:
            with _settings(device):
                if device.type == "cuda":
                    double_by_copies(exported)
                found = partition.cut(exported, crew.workers, _PART_COSTS[device.type])
                if found is None:
                    crew.dismiss()
                    crew.work({GRAPH_FILE: lambda: _compile_whole(exported, options, folder)})
                    return [GRAPH_FILE]
                plan, modules = found
                largest_first = sorted(range(len(modules)), key=lambda kind: -len(modules[kind].graph.nodes))
                if crew.has_helpers:
                    _hand_out(modules, largest_first, folder)
                crew.work(
                    {
                        _part_file(kind): functools.partial(_compile_part, modules[kind], options, folder, kind)
                        for kind in largest_first
                    },
                    {_part_file(kind): float(len(modules[kind].graph.nodes)) for kind in largest_first},
                )
        except Exception as error:
            raise CompileError(f"AOTInductor could not compile the model ({in_brief(error)}).") from error
        (folder / PLAN_FILE).write_text(json.dumps(plan.to_json()), encoding="utf-8")
        return [PLAN_FILE, *(_part_file(kind) for kind in range(len(modules)))]

    def help_with(self, folder: Path, device: torch.device, crew: Crew) -> None:
        """Compile parts that another process hands out in `folder`; until there are any, start what all of them need.

        Raises:
            LoadError: this torch lacks something that is needed.
        """
        options = _options(device)
        with self.capture_settings(), _settings(device):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                compile_anything(options, device, Path(scratch))
            while not (folder / _ORDER_FILE).exists():  # the leader ends this process when it ends
                time.sleep(_POLL_SECONDS)

            def compile_kind(kind: int) -> None:
                _compile_part(transfer.load((folder / _parcel_file(kind)).read_bytes(), device), options, folder, kind)

            order: list[int] = json.loads((folder / _ORDER_FILE).read_text(encoding="utf-8"))
            crew.work({_part_file(kind): functools.partial(compile_kind, kind) for kind in order})

    def rebuild(self, kept: Path, inputs: Sequence[torch.Tensor], folder: Path) -> list[str]:
        raise CompileError("AOTInductor compiles each graph from the model itself.")

    def load(self, folder: Path, device: torch.device) -> InductorRunner:
        loader_class = require("torch._C._aoti.AOTIModelPackageLoader")
        require("torch._C._aoti.AOTIModelPackageLoader.boxed_run")
        index = device.index if device.type == "cuda" and device.index is not None else -1

        def loader(file: str) -> Any:
            return loader_class(str(folder / file), "model", True, 1, index)

        replays = (folder / PROOF_FILE).exists()
        try:
            if not (folder / PLAN_FILE).exists():
                whole = loader(GRAPH_FILE)
                names = {name: name for name in whole.get_constant_fqns()}
                return InductorRunner([_Placed(whole, names, None, (_WHOLE,), ())], _WHOLE, replays)
            plan = partition.Plan.from_json(json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")))
            parts = []
            for step, gone in zip(plan.steps, plan.last_uses(), strict=True):
                part = loader(_part_file(step.kind))
                shorts = [f"w{number}" for number in range(len(step.weights))]
                if set(part.get_constant_fqns()) != set(shorts):
                    raise LoadError("The compiled graph's parts do not read the weights of its plan; it runs eager.")
                weights = dict(zip(shorts, step.weights, strict=True))
                parts.append(_Placed(part, weights, step.inputs, step.outputs, gone))
            return InductorRunner(parts, plan.result, replays)
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(
                f"The compiled graph could not be loaded ({in_brief(error)}); it runs eager instead."
            ) from error

    def estimate_memory(self, folder: Path) -> int:
        return 0
