"""The C++ half of a compile, made cheaper, and kernels that all loaders of a graph share.

Every region of a graph brings its own copy of AOTInductor's runtime, 4 s of the compiler's time whatever the region
computes. That text is the same for all of them: here it is compiled once for a user, and regions are linked with it.
Headers and the probing of the CPU's instruction sets are taken care of while the model is captured.

A graph of blocks has one loader for each block. AOTInductor gives each its own table of GPU kernels, so that 57 blocks
would load every kernel 57 times; here they share one for each device, which goes with the last of them.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch

from ...common.errors import LoadError
from ...common.log import logger
from ...common.replaced import replaced
from ...common.torch_private import require
from . import for_windows
from .target import cpu_digest

log = logger("compiler")

MOST_BYTES = 2 << 30  # of what compiles of one user share
_WRAPPER, _ALONE = ".wrapper.cpp", ".alone.cpp"
_RUNTIME = "runtime.cpp"
_NAMED = '#line 1 "region.cpp"\n'  # what fails says where, by no folder of this machine
_MODEL = "torch::aot_inductor::AOTInductorModel"
_BASE = f"torch::aot_inductor::AOTInductorModelBase<{_MODEL}>"
# What of the runtime's text a region still needs: the class that it defines, and the headers its code counts on.
_DECLARED = f"""
#include <torch/csrc/inductor/aoti_runtime/interface.h>
#include <torch/csrc/inductor/aoti_runtime/model.h>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>
extern template class {_BASE};
"""
_KERNELS = """class AOTInductorModelKernels : public AOTInductorModelKernelsBase {
  public:
"""
_OWN = "static_cast<AOTInductorModelKernels&>(*this->kernels_.get())"
_SHARED = """    std::shared_ptr<AOTInductorModelKernels> shared;
    AOTInductorModelKernels& of(int device) {
      if (!shared) {
        static std::mutex lock;
        static std::map<int, std::weak_ptr<AOTInductorModelKernels>> known;
        std::lock_guard<std::mutex> held(lock);
        shared = known[device].lock();
        if (!shared) {
          shared = std::make_shared<AOTInductorModelKernels>();
          known[device] = shared;
        }
      }
      return *shared;
    }
"""
_DEFINED = f"\ntemplate class {_BASE};\n"


def cpp_compiler() -> str | None:
    """Return the C++ compiler that AOTInductor would call, or None."""
    if os.name == "nt":  # where it calls Microsoft's, whatever else is on PATH
        return None
    chosen = os.environ.get("CXX")
    return shutil.which(chosen) if chosen else shutil.which("g++") or shutil.which("clang++")


def shared_folder() -> Path:
    """Return the folder for what compiles of one user share."""
    # Where the compiling process was told to; asking torch, where it was not, takes importing Inductor.
    chosen = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(chosen or require("torch._inductor.runtime.cache_dir_utils.cache_dir")()) / "onegraph"


class _Ready(BaseException):
    """All that regions have in common is there. Inductor wraps every Exception in one of its own."""


class Toolchain:
    """Inductor's use of the C++ compiler in this process.

    Args:
        folder: for what is shared between compiles on CPUs with the same instruction sets.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls) -> Toolchain:
        """Return the one that this user's compiles on this CPU share."""
        # Machines may share the folder, and what is in it is built for the native CPU.
        return cls(shared_folder() / cpu_digest())

    @contextlib.contextmanager
    def in_use(self, only_prepare: bool = False) -> Iterator[None]:
        """Compile regions without the runtime, and link them with the shared one, while this lasts.

        Where this torch is put together in another way, the regions are compiled as ever.

        Args:
            only_prepare: raise `_Ready` where a region would be compiled, when all that it shares is there.
        """
        try:
            codecache = require("torch._inductor.codecache")
            usual: Any = require("torch._inductor.codecache.CppBuilder")
            for used in ("build", "get_command_line", "get_target_file_path"):
                require(f"torch._inductor.codecache.CppBuilder.{used}")
            require("torch._inductor.cpp_builder.BuildOptionsBase.get_cflags")
            require("torch._inductor.codecache.AotCodeCompiler")
            source = Path(torch.__file__).parent / "_inductor" / "codegen" / "aoti_runtime" / "interface.cpp"
            text = source.read_text(encoding="utf-8").strip()
        except (LoadError, OSError) as error:
            log.warning("regions are compiled with a runtime of their own: %s", error)
            yield
            return
        shared: dict[str, str] = {}  # objects of regions without the runtime -> the runtime's
        folder = self._folder

        class Builder(usual):
            """As ever but for wrappers, and for links with objects of theirs."""

            def __init__(self, name: str, sources: Any, BuildOption: Any, output_dir: str = "", **rest: Any) -> None:
                if isinstance(sources, list | tuple):
                    sources = [*sources, *dict.fromkeys(shared[source] for source in sources if source in shared)]
                self.onegraph_arguments = (name, sources, BuildOption, output_dir, rest)
                super().__init__(name, sources, BuildOption, output_dir, **rest)

            def build(self) -> None:
                name, source, options, region_folder, rest = self.onegraph_arguments
                if not isinstance(source, str) or not source.endswith(_WRAPPER):
                    super().build()
                    return
                head, separator, body = Path(source).read_text(encoding="utf-8").partition(text)
                if separator:
                    # Beside the whole one, which stays as Inductor wrote it: it writes none that is there already.
                    alone = Path(source.removesuffix(_WRAPPER) + _ALONE)
                    try:
                        runtime = _runtime(usual, options, head, text, folder)
                        if only_prepare:
                            raise _Ready
                        text_alone = _NAMED + head + _DECLARED + with_shared_kernels(body)
                        alone.write_text(text_alone, encoding="utf-8")
                        usual(name, str(alone), options, region_folder, **rest).build()
                        shared[self.get_target_file_path()] = runtime
                        return
                    except (_compile_error(), OSError) as error:
                        log.warning("a region is compiled with a runtime of its own: %s", error)
                    finally:
                        alone.unlink(missing_ok=True)
                if only_prepare:
                    raise _Ready
                super().build()

        headers = folder / "headers"  # beside the rest, instead of where the system keeps what is temporary
        with contextlib.ExitStack() as changes:
            for name, header_folder in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", headers / "locks")):
                if hasattr(codecache, name):
                    changes.enter_context(replaced(codecache, name, str(header_folder)))
            changes.enter_context(replaced(codecache, "CppBuilder", Builder))
            yield

    def prepare(self, options: Mapping[str, Any], device: torch.device) -> int | None:
        """Have a process make what all regions share, if that was never done here; return its id, or None.

        It is a copy of this process, which must not have used a GPU, and ends by itself.
        """
        done = self._folder / f"ready-{device.type}-{_fingerprint()}"
        if sys.platform != "linux" or done.exists():
            return None
        child = os.fork()
        if child:
            return child
        try:
            torch.set_num_threads(1)  # OpenMP's threads are not there in a copy of a process
            with self.in_use(only_prepare=True), contextlib.suppress(_Ready), tempfile.TemporaryDirectory() as scratch:
                compile_anything(options, device, Path(scratch))
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
        except BaseException:  # the regions then do it themselves
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)


def with_shared_kernels(body: str) -> str:
    """Have the loaders of a region share their kernels; code that this torch writes in another way stays as it is."""
    if body.count(_KERNELS) != 1 or _OWN not in body:
        return body
    return body.replace(_KERNELS, _KERNELS + _SHARED).replace(_OWN, f"{_OWN}.of(this->device_idx_)")


def trim(folder: Path, most: int = MOST_BYTES, spare_seconds: float = 3600.0) -> None:
    """Remove what compiles shared longest ago until the rest has at most that many bytes.

    Args:
        spare_seconds: what was written in the last so many seconds stays, for a compile may be at it.
    """
    entries: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            files = [entry, *entry.rglob("*")] if entry.is_dir() else [entry]
            stats = [path.lstat() for path in files]
            entries.append((max(s.st_mtime for s in stats), sum(s.st_size for s in stats if S_ISREG(s.st_mode)), entry))
    total = sum(size for _, size, _ in entries)
    for changed, size, entry in sorted(entries):
        if total <= most or changed > time.time() - spare_seconds:
            return
        with contextlib.suppress(OSError):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            total -= size


def _compile_error() -> type[Exception]:
    error: type[Exception] = require("torch._inductor.exc.CppCompileError")
    return error


def _fingerprint() -> str:
    """Of the compiler and of torch."""
    from blake3 import blake3

    compiler = cpp_compiler() or ""
    changed = Path(compiler).resolve().stat().st_mtime_ns if compiler else 0
    return blake3(f"{torch.__version__} {torch.__file__} {compiler} {changed}".encode()).hexdigest(length=6)


def _runtime(builder: Any, options: Any, head: str, text: str, folder: Path) -> str:
    """The shared runtime's object for these options, compiled where it is not there yet."""
    from blake3 import blake3
    from filelock import FileLock

    code = head + for_windows.unloadable(text) + _DEFINED
    # Made once, so optimised in any case: a second more for 0.3 instead of 1.3 MB in each region's library.
    options = copy.deepcopy(options)
    flags = options.get_cflags()
    flags[:] = ["O1" if flag == "O0" else flag for flag in flags]
    command = builder("x", "x.cpp", options, "x").get_command_line()
    name = blake3(f"{_fingerprint()} {command} {code}".encode()).hexdigest(length=10)
    home = folder / f"runtime-{name}"
    home.mkdir(parents=True, exist_ok=True)
    wanted = home / "runtime.o"
    with FileLock(home / "lock"):
        if not wanted.exists():
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                (Path(scratch) / _RUNTIME).write_text(code, encoding="utf-8")
                made = builder("runtime", str(Path(scratch) / _RUNTIME), options, scratch)
                made.build()
                Path(made.get_target_file_path()).replace(wanted)
    os.utime(home)
    return str(wanted)


class _Anything(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def compile_anything(options: Mapping[str, Any], device: torch.device, folder: Path) -> None:
    """Compile a region that computes next to nothing."""
    x = torch.zeros(64, device=device)
    module = torch.export.export(_Anything(), (x,)).module()
    output = {"aot_inductor.package": True, "aot_inductor.output_path": str(folder / "region")}
    require("torch._inductor").aot_compile(module, (x,), options={**options, **output})


def import_compiler() -> None:
    """Import what every compile takes and what takes long to import, for a process that waits for a job."""
    for name in (
        "torch.export",
        "torch._inductor.compile_fx",
        "torch._inductor.package",
        "torch._inductor.codegen.cpp_wrapper_gpu" if torch.version.cuda else "torch._inductor.codegen.cpp",
    ):
        with contextlib.suppress(LoadError):  # the compile will say what is missing
            require(name)
