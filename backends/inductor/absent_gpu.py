"""Graphs for a GPU that this machine does not have: while a process pretends to have one, Inductor compiles for it.

Nothing is launched. Weights and values are fake tensors, whose sizes and dtypes are all that a capture and a compile
ask for. What torch and Triton would ask the device is answered by `GPUS`. Of each kernel's configurations, among which
a compile measures, the first is taken that spills no registers: registers and spills are read from the machine code.

A process pretends for as long as it lives, for one GPU: Inductor remembers a device's properties.
"""

from __future__ import annotations

import contextlib
import os
import re
import site
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ...common.errors import CompileError, LoadError
from ...common.replaced import replaced
from ...common.torch_private import require
from . import for_windows, machine_code, target
from .explicit_attention import ExplicitAttention

_BYTES = 80 << 30  # of memory, of which nothing is taken
_TOOLKIT = Path("/usr/local/cuda")
_HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h", "nv/target")


@dataclass(frozen=True)
class Gpu:
    """What a compile asks of a GPU.

    Attributes:
        capability: its compute capability.
        processors: how many multiprocessors it has.
        threads: that each of them holds.
        shared_bytes: of shared memory, that a block of threads may have.
    """

    capability: tuple[int, int]
    name: str
    processors: int
    threads: int
    shared_bytes: int


# One card of each architecture: the others differ in the number of multiprocessors, by which no code is chosen that
# another could not run. NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities", and the cards' white papers.
GPUS: Mapping[str, Gpu] = {
    "sm_80": Gpu((8, 0), "NVIDIA A100", 108, 2048, 166912),
    "sm_86": Gpu((8, 6), "NVIDIA GeForce RTX 3090", 82, 1536, 101376),
    "sm_89": Gpu((8, 9), "NVIDIA GeForce RTX 4090", 128, 1536, 101376),
    "sm_90": Gpu((9, 0), "NVIDIA H200", 132, 2048, 232448),
    "sm_100": Gpu((10, 0), "NVIDIA B200", 148, 2048, 232448),
    "sm_120": Gpu((12, 0), "NVIDIA GeForce RTX 5090", 170, 1536, 101376),
}
PLATFORMS: Mapping[str, str] = {"linux": "x86_64", "windows": for_windows.MACHINE}  # with their processors
_pretended: list[tuple[Gpu, str]] = []


def cuda_headers() -> Path:
    """Return a folder of CUDA's headers that a compile needs, as `CUDA_HOME`.

    Raises:
        LoadError: none is complete.
    """
    packages = [Path(one) / "nvidia" / "cu13" for one in (*site.getsitepackages(), *sys.path)]
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for home in (*named, _TOOLKIT, *packages):
        if all((home / "include" / header).is_file() for header in _HEADERS):
            return home
    raise LoadError(
        "CUDA's headers are not complete here; `pip install nvidia-cuda-crt nvidia-cuda-cccl` in the version of "
        "nvidia-cuda-runtime, or set CUDA_HOME to a toolkit."
    )


def pretend(gpu: Gpu, platform: str) -> None:
    """Have this process' torch tell of a GPU. To be called before ComfyUI is imported, which asks for it.

    Args:
        platform: one of `PLATFORMS`, on which the graphs are to run.

    Raises:
        LoadError: this process has a GPU, or pretends to have another one; or this torch lacks what is replaced.
    """
    if torch.version.cuda is None:
        raise LoadError(
            f"torch {torch.__version__} is built without CUDA; install the one that the other machines have."
        )
    if _pretended or torch.cuda.is_available():
        raise LoadError("A process compiles for one GPU, and only where it has none.")
    cuda: Any = torch.cuda
    require("torch._C._ensureCUDADeviceGuardSet")()  # torch's C++ code asks it for the device, and no driver then
    os.environ["CUDA_HOME"] = str(cuda_headers())
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # which names folders of this machine
    for name, answer in _answers(gpu).items():
        require(f"torch.cuda.{name}")
        setattr(cuda, name, answer)
    fakes = require("torch._subclasses.fake_tensor")
    require("torch._subclasses.fake_tensor.FakeTensorMode.avoid_device_init")
    require("torch._subclasses.fake_tensor.init_gpu_context")
    fakes.FakeTensorMode.avoid_device_init = property(lambda self: True)
    fakes.init_gpu_context = lambda device: None
    if platform != sys.platform:
        target.pretend(platform, PLATFORMS[platform])
    _pretended.append((gpu, platform))


def _answers(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    """What torch.cuda tells of it, by the names of its functions."""
    properties = SimpleNamespace(
        name=gpu.name, major=gpu.capability[0], minor=gpu.capability[1], multi_processor_count=gpu.processors,
        warp_size=32, max_threads_per_multi_processor=gpu.threads, max_threads_per_block=1024,
        regs_per_multiprocessor=65536, total_memory=_BYTES, shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared_bytes, shared_memory_per_multiprocessor=gpu.shared_bytes + 1024,
        L2_cache_size=50 << 20, gcnArchName="", uuid="0",
    )  # fmt: skip
    return {
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "current_stream": lambda device=None: None,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: gpu.name,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device="cuda": None,
        "mem_get_info": lambda device=None: (_BYTES, _BYTES),
        "memory_stats": lambda device=None: Counter[str](),
        "memory_allocated": lambda device=None: 0,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
    }


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Make and compute tensors without memory while this lasts, where the GPU is a pretended one."""
    if not _pretended:
        yield
        return
    fake = require("torch._subclasses.fake_tensor.FakeTensorMode")(allow_non_fake_inputs=True)
    gpu, platform = _pretended[0]
    with fake, ExplicitAttention(gpu.capability, has_flash=platform != "windows"):
        yield


@contextlib.contextmanager
def compiling(exported: torch.export.ExportedProgram, device: torch.device) -> Iterator[None]:
    """Have Inductor compile a captured graph for the pretended GPU while this lasts; nothing where there is none."""
    if not _pretended:
        yield
        return
    gpu, platform = _pretended[0]
    with contextlib.ExitStack() as replacing:
        replacing.enter_context(require("torch.fx.experimental.proxy_tensor.unset_fake_temporarily")())
        _with_one_mode(exported)
        _without_launches(gpu, replacing)
        if platform == "windows":
            replacing.enter_context(for_windows.compiling(device))
        else:
            folder = replacing.enter_context(tempfile.TemporaryDirectory())
            replacing.enter_context(_driver_to_link(Path(folder)))
        yield


def _with_one_mode(exported: torch.export.ExportedProgram) -> None:
    """Give a graph's weights the fake mode that its values have."""
    values = [node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"]
    mode = next(value.fake_mode for value in values if hasattr(value, "fake_mode"))
    held: Any
    for held in (exported.state_dict, exported.constants):
        for name, one in held.items():
            if isinstance(one, torch.Tensor):
                with mode:
                    own = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
                held[name] = torch.nn.Parameter(own, False) if isinstance(one, torch.nn.Parameter) else own


def _without_launches(gpu: Gpu, replacing: contextlib.ExitStack) -> None:
    """Replace what Inductor and Triton ask the device while they compile."""
    interface = require("torch._dynamo.device_interface.CudaInterface")
    properties = require("torch._dynamo.device_interface.caching_worker_device_properties")
    helpers = require("torch._inductor.runtime.triton_helpers")
    wrapper = require("torch._inductor.codegen.wrapper.PythonWrapperCodegen")
    graph = require("torch._inductor.graph")
    config = require("torch._inductor.config")
    require("torch._inductor.graph.is_same_tensor")
    require("torch._inductor.runtime.triton_helpers.set_driver_to_gpu")
    require("torch._inductor.codegen.wrapper.PythonWrapperCodegen.generate_and_run_autotune_block")
    require("torch._inductor.runtime.triton_heuristics.CachingAutotuner.save_gpu_kernel")
    usual: Any = torch.cuda
    same_names = ("is_available", "device_count", "current_device", "set_device", "get_device_properties",
                  "synchronize", "is_bf16_supported", "memory_allocated")  # fmt: skip
    answers = {name: getattr(usual, name) for name in same_names}
    answers |= dict.fromkeys(("get_raw_stream", "exchange_device", "maybe_exchange_device"), _first_device)
    for name, answer in answers.items():
        replacing.enter_context(replaced(interface, name, staticmethod(answer)))
    properties["cuda"] = [usual.get_device_properties()]
    replacing.enter_context(replaced(graph, "is_same_tensor", _same_tensor))
    replacing.enter_context(replaced(helpers, "set_driver_to_gpu", lambda: None))
    replacing.enter_context(replaced(wrapper, "generate_and_run_autotune_block", _without_measuring))
    replacing.enter_context(config.patch({"compile_threads": 1, "triton.autotune_at_compile_time": True}))
    import triton

    triton.runtime.driver.set_active(_driver(gpu))


def _first_device(device: Any = 0) -> int:
    return 0


def _same_tensor(one: Any, other: Any) -> bool:
    """Whether two weights are one: those without memory share a storage."""
    if one is other:
        return True
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    alike = (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    return alike and one.untyped_storage()._cdata == other.untyped_storage()._cdata


def _without_measuring(self: Any) -> None:
    """In place of the run of all kernels that measures their configurations: compile them, and choose one of each."""
    self.kernel_autotune_defs.splice("async_compile.wait(globals())\ndel async_compile\n")
    tuner = require("torch._inductor.runtime.triton_heuristics.CachingAutotuner")
    scope: dict[str, Any] = {}
    exec(self.kernel_autotune_defs.getvalue(), scope)  # noqa: S102 - the compiler's own text, as it would run it itself
    for kernel in [*scope.values()]:
        if isinstance(kernel, tuner):
            unspilled = [one for one in kernel.launchers if not one.n_spills]
            kernel.save_gpu_kernel(0, (unspilled or kernel.launchers)[0])


class _Utils:
    """What Triton asks a driver for."""

    def __init__(self, gpu: Gpu) -> None:
        self._properties = {
            "max_shared_mem": gpu.shared_bytes, "multiprocessor_count": gpu.processors, "warpSize": 32,
            "max_num_regs": 65536,
        }  # fmt: skip

    def get_device_properties(self, device: int) -> dict[str, int]:
        return self._properties

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        """As if a kernel was loaded: module, function, registers, spilled words, threads of a block."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            text = machine_code.told("-res-usage", Path(file.name))
        registers, spilled = re.search(r"REG:(\d+)", text), re.search(r"LOCAL:(\d+)", text)
        if registers is None or spilled is None:
            raise CompileError("cuobjdump tells nothing of a kernel's registers; use a Triton named in the README.")
        return 1, 1, int(registers[1]), int(spilled[1]) // 4, 1024

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""


def _driver(gpu: Gpu) -> Any:
    """A driver of Triton's."""
    from triton.backends.compiler import GPUTarget

    architecture = 10 * gpu.capability[0] + gpu.capability[1]
    return SimpleNamespace(
        utils=_Utils(gpu),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_current_target=lambda: GPUTarget("cuda", architecture, 32),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        launcher_cls=lambda source, metadata: lambda *args, **kwargs: None,
    )


@contextlib.contextmanager
def _driver_to_link(folder: Path) -> Iterator[None]:
    """Have the linker find a library with the driver's name and functions, for which graphs ask where they are loaded.

    Linkers leave out a library of which no function is used.
    """
    from .toolchain import cpp_compiler

    compiler = cpp_compiler()
    if compiler is None:
        raise CompileError("No C++ compiler was found, which graphs for other machines need, too.")
    source = folder / "driver.cpp"
    header = (Path(os.environ["CUDA_HOME"]) / "include" / "cuda.h").read_text(encoding="utf-8", errors="replace")
    functions = sorted({*re.findall(r"\bcu[A-Z]\w+", header)})
    source.write_text("".join(f'extern "C" void {name}() {{}}\n' for name in functions), encoding="utf-8")
    library = ["-shared", "-o", str(folder / "libcuda.so"), "-Wl,-soname,libcuda.so.1", str(source)]
    subprocess.run([compiler, *library], check=True, capture_output=True)
    before = os.environ.get("LIBRARY_PATH")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["LIBRARY_PATH"]
        else:
            os.environ["LIBRARY_PATH"] = before
