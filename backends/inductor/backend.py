"""The Inductor backend: compiles with `torch._inductor`'s ahead-of-time compiler, runs without a compiler."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ...common import container, memory, reasons
from ...common.errors import CompileError, LoadError, in_brief
from ...common.torch_private import OLDEST_TORCH, require, version
from ...signature.declared import ShapeRange
from ..base import AVAILABLE, Availability
from ..worker_pool import WorkerPool
from . import absent_gpu, attention_choice, machine_code, partition, runner, settings, sharing
from .decompositions import double_by_copies
from .packages import GRAPH_FILE, PLAN_FILE, compile_region, compile_whole, region_file
from .repetition import CompileTime
from .runner import InductorRunner
from .specialisation import Served
from .target import target
from .toolchain import Toolchain, compile_anything, cpp_compiler

MOST_WORKERS = 3
MOST_WORKERS_OF_GPUS = 7
_WORTH_SHARING = 200  # weights; SDXL's UNet has 1680, its VAE 248, whose decoder took 46 s by four workers for 74 s
# See `CompileTime`. On a CPU a region costs 3.5 s and an operation 0.06 s; on a GPU (H200, eight processes) 6 and 0.04.
_REGION_COSTS = {"cpu": 60, "cuda": 150}


class InductorBackend:
    """AOTInductor graphs, for CPUs and GPUs."""

    name = "inductor"

    def __init__(self) -> None:
        self._prepared: set[str] = set()  # types of devices

    def can_run(self, device: torch.device) -> Availability:
        if version() < OLDEST_TORCH:
            return Availability(reasons.TorchTooOld(torch.__version__, ".".join(map(str, OLDEST_TORCH))))
        if device.type not in ("cpu", "cuda"):
            return Availability(reasons.WrongDeviceType("AOTInductor", device.type))
        return AVAILABLE

    def can_compile(self, device: torch.device) -> Availability:
        runs = self.can_run(device)
        if not runs.ok:
            return runs
        if os.name == "nt":
            return Availability(reasons.LoadsOnly())
        if cpp_compiler() is None:
            return Availability(reasons.NoCompiler(os.environ.get("CXX") or ""))
        return AVAILABLE

    def compiler(self) -> str:
        path = cpp_compiler()
        try:
            stat = Path(path).stat() if path is not None else None
        except OSError:
            stat = None
        return path or "" if stat is None else f"{path} {stat.st_size} {stat.st_mtime_ns}"

    def supports(self, shapes: ShapeRange) -> bool:
        return True

    def target(self, device: torch.device) -> dict[str, str]:
        return target(device)

    @contextlib.contextmanager
    def capture_settings(self) -> Iterator[None]:
        with settings.capture_settings(), absent_gpu.fake_tensors():
            yield

    def workers(self, weights: int, device: torch.device) -> int:
        """Each takes about 2 GiB, and on a GPU 0.6 GiB there."""
        cpu = torch.device("cpu")
        if device.type == "cpu":  # copies of the compiling process
            return max(0, min(MOST_WORKERS, container.cores() - 1, memory.available_bytes(cpu) // (2 << 30)))
        if weights < _WORTH_SHARING:
            return 0
        room = [MOST_WORKERS_OF_GPUS, container.cores() // 2 - 1, memory.available_bytes(cpu) // (4 << 30)]
        room.append(memory.available_bytes(device) // (3 << 30))
        return max(0, min(room))

    def prepare(self, device: torch.device, workers: int) -> None:
        if device.type in self._prepared:  # while this process waited for a job
            return
        self._prepared.add(device.type)
        with settings.compiler_flags(device):
            Toolchain.of_user().prepare(settings.options(device), device)
        if device.type == "cuda":
            with contextlib.suppress(LoadError):  # a compile starts them as well, when it comes to its first kernel
                start = require("torch._inductor.async_compile.maybe_warm_pool")
                config = require("torch._inductor.config")
                if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
                    config.compile_threads = max(4, container.cores() // (1 + workers))
                start()

    def compile(
        self,
        exported: torch.export.ExportedProgram,
        inputs: Sequence[torch.Tensor],
        folder: Path,
        pool: WorkerPool | None = None,
        served: Sequence[Sequence[Sequence[int]]] = (),
    ) -> list[str]:
        pool = pool or WorkerPool(folder)
        device = inputs[0].device
        options = settings.options(device)
        try:
            with (
                absent_gpu.compiling(exported, device),
                settings.compile_settings(device),
                contextlib.ExitStack() as attention,
            ):
                calls = Served.of(exported, served)
                cudnn_first = attention_choice.is_cudnn_first(exported, device)
                if device.type == "cuda":
                    attention.enter_context(settings.fast_attention(cudnn_first))
                    double_by_copies(exported)
                partitioned = partition.cut(exported, CompileTime(pool.size, _REGION_COSTS[device.type]))
                if partitioned is None:
                    pool.dismiss()
                    exact = settings.own_rounding(exported)
                    pool.run({GRAPH_FILE: lambda: compile_whole(exported, {**options, **exact}, folder, calls)})
                    return [GRAPH_FILE]
                plan, modules = partitioned
                largest_first = sorted(range(len(modules)), key=lambda number: -len(modules[number].graph.nodes))
                if pool.has_workers:
                    sharing.hand_out(modules, largest_first, folder, calls, cudnn_first)
                pool.run(
                    {
                        region_file(number): functools.partial(
                            compile_region, modules[number], options, folder, number, calls
                        )
                        for number in largest_first
                    },
                    {region_file(number): float(len(modules[number].graph.nodes)) for number in largest_first},
                )
        except Exception as error:
            raise CompileError(f"AOTInductor could not compile the model ({in_brief(error)}).") from error
        (folder / PLAN_FILE).write_text(json.dumps(plan.to_json()), encoding="utf-8")
        return [PLAN_FILE, *(region_file(number) for number in range(len(modules)))]

    def help_with(self, folder: Path, device: torch.device, pool: WorkerPool) -> None:
        """Compile regions that the main worker hands out in `folder`; until there are any, start what all of them need.

        Raises:
            LoadError: this torch lacks something that is needed.
        """
        options = settings.options(device)
        with settings.capture_settings(), settings.compile_settings(device):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
                compile_anything(options, device, Path(scratch))
            sharing.compile_handed_out(folder, device, options, pool)

    def load(self, folder: Path, device: torch.device) -> InductorRunner:
        return runner.load(folder, device)

    def loader(self, folder: Path, device: torch.device) -> runner.Loader:
        return runner.Loader(folder, device)

    def absent_devices(self) -> Sequence[str]:
        return [*absent_gpu.GPUS]

    def platforms(self) -> Sequence[str]:
        return [*absent_gpu.PLATFORMS]

    def pretend(self, device: str, platform: str) -> None:
        absent_gpu.pretend(absent_gpu.GPUS[device], platform)

    def check_absent(self, folder: Path, device: torch.device, weights: Mapping[str, torch.Tensor]) -> list[str]:
        facts = target(device)
        return machine_code.check(folder, torch.cuda.get_device_capability(device), facts["platform"], weights)

    def estimate_memory(self, folder: Path) -> int:
        return 0
