"""Graphs for Windows, made on Linux by mingw: AOTInductor's own cross-compiling, with what it leaves to its user.

A graph is a DLL that asks those of torch, CUDA and the driver for functions by name. To link it, nothing of Windows is
needed: which DLL has which functions is in the headers that torch and CUDA bring for Linux, and mingw's dlltool makes
import libraries of names. Kernels lie inside the DLL, since CUDA opens no files whose folder's name is not ASCII there.

No graph is compiled on Windows by this pack, and none was run on a Windows GPU yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ...common.errors import CompileError
from ...common.replaced import replaced
from ...common.torch_private import require

MACHINE = "AMD64"  # as Windows names its processors
_DLLTOOL, _COMPILER = "x86_64-w64-mingw32-dlltool", "x86_64-w64-mingw32-g++"
_SHIM, _STABLE = "csrc/inductor/aoti_torch", "csrc/stable/c/shim.h"  # of torch's headers
_OPENMP = ("omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads", "omp_in_parallel")
# torch's runtime keeps the text of the last error in a std::string for each thread. mingw's runtime never unloads a DLL
# that has one, so that the file of a graph could not be removed as long as the process lives.
_LAST_ERROR = "static thread_local std::string g_aoti_last_error;"
_PLAIN_LAST_ERROR = """static struct {
  char text[1024];
  void clear() { text[0] = 0; }
  void operator=(const char* other) { std::snprintf(text, sizeof text, "%s", other); }
  const char* c_str() const { return text; }
} g_aoti_last_error;"""


@contextlib.contextmanager
def compiling(device: torch.device) -> Iterator[None]:
    """Have Inductor write DLLs for Windows while this lasts.

    Raises:
        CompileError: mingw is not here.
        LoadError: this torch does not cross-compile.
    """
    if shutil.which(_DLLTOOL) is None or shutil.which(_COMPILER) is None:
        raise CompileError(
            f"{_COMPILER} was not found, which writes graphs for Windows; install Debian's "
            "g++-mingw-w64-x86-64-posix and mingw-w64-tools, or the like."
        )
    config = require("torch._inductor.config")
    builder = require("torch._inductor.cpp_builder")
    extension = require("torch.utils.cpp_extension")
    usual = require("torch._inductor.cpp_builder._get_os_related_cpp_definitions")
    require("torch.utils.cpp_extension.library_paths")
    printer = require("torch.utils._sympy.printers.CppPrinter")
    printed = require("torch.utils._sympy.printers.CppPrinter._print_Integer")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as changes:
        linked = _functions(device)
        for name, (dll, functions) in linked.items():
            _import_library(name, dll, functions, Path(folder))
        options: dict[str, Any] = {
            "cross_target_platform": "windows", "link_libtorch": False, "aoti_shim_library_path": folder,
            "aoti_shim_library": [*linked], "package_constants_in_so": False, "precompile_headers": False,
            "embed_kernel_binary": device.type == "cuda",
        }  # fmt: skip
        try:
            changes.enter_context(config.patch({f"aot_inductor.{name}": value for name, value in options.items()}))
        except (AttributeError, KeyError) as error:
            raise CompileError(f"torch {torch.__version__} writes no graphs for Windows; update torch.") from error
        # mingw has M_PI, which a header of torch's reads, only where it is asked for.
        changes.enter_context(
            replaced(
                builder, "_get_os_related_cpp_definitions", lambda compiler: [*usual(compiler), "_USE_MATH_DEFINES"]
            )
        )
        # A long has 32 bits there; the code takes it for an index of 64.
        long_long = replaced(
            printer, "_print_Integer", lambda self, number: re.sub(r"\dL$", r"\g<0>L", printed(self, number))
        )
        changes.enter_context(long_long)
        changes.enter_context(replaced(extension, "WINDOWS_CUDA_HOME", folder))
        yield


def unloadable(runtime: str) -> str:
    """The text of AOTInductor's runtime; for Windows, without what keeps a DLL from being unloaded."""
    crossing = getattr(require("torch._inductor.config.aot_inductor"), "cross_target_platform", None)
    return runtime if crossing is None else runtime.replace(_LAST_ERROR, _PLAIN_LAST_ERROR)


def _functions(device: torch.device) -> Mapping[str, tuple[str, set[str]]]:
    """The DLLs that a graph for the device may ask, and for which functions, by the names that linkers are given."""
    torch_headers = Path(torch.__file__).parent / "include" / "torch"
    shim = torch_headers / _SHIM
    headers = [*(shim / "c" / name for name in ("shim.h", "shim_cpu.h", "shim_deprecated.h")), torch_headers / _STABLE]
    text = "".join(map(_text, headers))
    for_cuda = "".join(re.findall(r"#ifdef USE_CUDA\b.*?#endif", text, re.DOTALL))
    both = text + "".join(_text(shim / "generated" / f"c_shim_{kind}.h") for kind in ("aten", "cpu"))
    for_cuda += _text(shim / "generated" / "c_shim_cuda.h")
    pattern = r"\b(?:aoti_torch|torch)_\w+(?=\()"
    cuda = {*re.findall(pattern, for_cuda)}
    cpu = {*re.findall(pattern, both)} - cuda
    found = {"torch_cpu": ("torch_cpu.dll", cpu)}
    if device.type != "cuda":
        return {**found, "iomp5md": ("libiomp5md.dll", {*_OPENMP})}
    of_cuda = Path(os.environ["CUDA_HOME"]) / "include"
    major = str(torch.version.cuda).partition(".")[0]
    return {
        **found,
        "torch_cuda": ("torch_cuda.dll", cuda),
        "cudart": (f"cudart64_{major}.dll", {*re.findall(r"\bcuda[A-Z]\w+", _text(of_cuda / "cuda_runtime_api.h"))}),
        "cuda": ("nvcuda.dll", {*re.findall(r"\bcu[A-Z]\w+", _text(of_cuda / "cuda.h"))}),
    }


def _text(header: Path) -> str:
    return header.read_text(encoding="utf-8", errors="replace") if header.is_file() else ""


def _import_library(name: str, dll: str, functions: set[str], folder: Path) -> None:
    """Write what a linker reads in place of a DLL."""
    definition = folder / f"{name}.def"
    definition.write_text("\n".join([f"LIBRARY {dll}", "EXPORTS", *sorted(functions)]) + "\n", encoding="utf-8")
    subprocess.run([_DLLTOOL, "-d", definition, "-l", folder / f"lib{name}.dll.a"], check=True, capture_output=True)
