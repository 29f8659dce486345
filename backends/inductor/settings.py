"""How this backend has Inductor compile: its options, and what of Inductor is changed while it does."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ...common.errors import CompileError
from ...common.replaced import replaced
from ...common.torch_private import require, without_stack_traces
from .algebra import quick_strides
from .decompositions import group_norm, wide_attention
from .repeats import traced_once
from .toolchain import Toolchain

_HOPPER = 9  # compute capability of the cards that the choice for wide heads was measured on
_CHANNELS_LAST = [4, 0, 3, 2, 1]  # the order of the strides of a video [B, C, T, H, W], the fastest is 0
_ROUNDING = "emulate_precision_casts"  # of Inductor's options, where this torch has it
_OF_16_BITS = (torch.float16, torch.bfloat16)
_LONGEST_ROW = 2048  # elements; see `persistent_rows`
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
# Headers are not precompiled: that takes 8 s and 300 MB, and saves 2 s for each of the two or three regions. It pays
# for the hundred small graphs of a run of tests.
_CPU_OPTIONS = {
    "layout_optimization": False,
    "cpp.dynamic_threads": True,
    "aot_inductor.precompile_headers": os.environ.get("ONEGRAPH_TESTING_PRECOMPILE_HEADERS") == "1",
}
_NATIVE = ("march=", "mcpu=", "mtune=")
_BASELINES = {"x86_64": "march=x86-64", "amd64": "march=x86-64", "aarch64": "march=armv8-a"}


def options(device: torch.device) -> dict[str, Any]:
    """Return Inductor's options for a graph that runs on the device."""
    if device.type == "cuda":
        return {**_OPTIONS, **_CUDA_OPTIONS}
    # Named, because the code depends on it and copies of this process have one thread each.
    return {**_OPTIONS, **_CPU_OPTIONS, "cpp.threads": torch.get_num_threads()}


def own_rounding(exported: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the options by which what computes in float32 rounds to 16 bits where its own code does.

    Diffusers' Kandinsky 5 does so to its rotary embedding, and Gemma's norms to weights of 16 bits that they add 1 to.
    Left out, as Inductor does, a call is 2e-4 from eager's, and 1e-2. In models of 16 bits such roundings are what a
    compiler is better without, and the option has a price on a GPU.
    """
    import torch._inductor.config as config

    if not hasattr(config, _ROUNDING):  # as near to eager as first uses ask for, though
        return {}
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    held = exported.state_dict.values()
    given = [tensors[name] for name in exported.graph_signature.user_inputs if name in tensors]
    computing = ({one.dtype for one in some if one.is_floating_point()} for some in (held, given))
    in_float32 = any(kinds and kinds <= {torch.float32, torch.float64} for kinds in computing)
    rounds = any(one.dtype in _OF_16_BITS for one in tensors.values())
    return {_ROUNDING: True} if in_float32 and rounds else {}


@contextlib.contextmanager
def capture_settings() -> Iterator[None]:
    """Keep sizes of 1 symbolic while this lasts: one graph serves batch 1 and more, and any context length.

    Raises:
        CompileError: this torch cannot do that.
    """
    import torch.fx.experimental._config as config

    if not hasattr(config, "backed_size_oblivious"):
        raise CompileError(
            f"torch {torch.__version__} cannot keep a batch of one symbolic; update to 2.8 or newer to compile."
        )
    oblivious = config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with oblivious, without_stack_traces(), traced_once():
        yield


@contextlib.contextmanager
def compile_settings(device: torch.device) -> Iterator[None]:
    """Have Inductor compile as this backend needs it while this lasts."""
    with contextlib.ExitStack() as settings:
        settings.enter_context(compiler_flags(device))
        settings.enter_context(Toolchain.of_user().in_use())
        if device.type == "cpu":  # Triton's code generation does not ask for strides
            settings.enter_context(quick_strides())
            settings.enter_context(without_triton_digest())
        if device.type == "cuda":
            capability = torch.cuda.get_device_capability(device)[0]
            settings.enter_context(own_decompositions(capability))
            settings.enter_context(persistent_rows())
            settings.enter_context(video_convolutions())
        yield


@contextlib.contextmanager
def without_triton_digest() -> Iterator[None]:
    """Keep Inductor from reading all of Triton, to name a file of autotuned kernels, while this lasts.

    That takes each process of a compile a second, and nothing is autotuned on a CPU.
    """
    cache = require("torch._inductor.codecache.CacheBase")
    require("torch._inductor.codecache.CacheBase.get_system")
    with replaced(cache, "get_system", staticmethod(lambda: {"hash": "cpu"})):
        yield


@contextlib.contextmanager
def fast_attention(cudnn_first: bool) -> Iterator[None]:
    """Have the attention that is the faster one called while this lasts, where it can be: see `attention_choice`.

    torch has an order of its own, by the GPU and by cuDNN's version.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    order.insert(0 if cudnn_first else 2, SDPBackend.CUDNN_ATTENTION)
    with sdpa_kernel(order, set_priority=True):
        yield


@contextlib.contextmanager
def own_decompositions(capability: int) -> Iterator[None]:
    """Put ours into Inductor's table of decompositions while this lasts."""
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
def video_convolutions() -> Iterator[None]:
    """Have convolutions of videos in 16 bits read and write their channels last while this lasts.

    cuDNN computes them so. Given others it copies what it reads and writes: on an H100, 96 channels of 4 frames of
    480x832 take 2.3 ms and 586 MiB that way, and 1.8 ms and 146 MiB with the channels last. The compiler's own choice
    of layouts is for images.
    """
    table = require("torch._inductor.lowering.lowerings")
    require("torch._inductor.kernel.conv")  # which enters its own
    requires = require("torch._inductor.ir.ExternKernel.require_stride_order")
    aten = torch.ops.aten
    usual, cat, permute = (table[one.default] for one in (aten.convolution, aten.cat, aten.permute))

    def joined(tensors: Any, dim: int = 0) -> Any:
        """Frames before others, which a convolution reads next: where they are put together they have one layout."""
        if dim != 2 or any(len(one.get_size()) != 5 or one.get_dtype() not in _OF_16_BITS for one in tensors):
            return cat(tensors, dim)
        return permute(cat([permute(one, [0, 2, 3, 4, 1]) for one in tensors], 1), [0, 4, 1, 2, 3])

    def convolution(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                    *more: Any) -> Any:  # fmt: skip
        if len(x.get_size()) == 5 and x.get_dtype() in _OF_16_BITS and not transposed:
            x = requires(x, _CHANNELS_LAST)
        return usual(x, weight, bias, stride, padding, dilation, transposed, *more)

    table.update({aten.convolution.default: convolution, aten.cat.default: joined})
    try:
        yield
    finally:
        table.update({aten.convolution.default: usual, aten.cat.default: cat})


@contextlib.contextmanager
def persistent_rows() -> Iterator[None]:
    """Reduce rows of up to 2048 elements at once while this lasts.

    The compiler's own limit of 1024 makes two passes over more. SDXL's 210 layer norms are over 640 and 1280 elements.
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


@contextlib.contextmanager
def compiler_flags(device: torch.device) -> Iterator[None]:
    """Give the C++ compiler other flags while this lasts, where torch has no option for them.

    For a GPU, C++ only launches kernels: built for the least CPU of this machine's kind instead of this very one it is
    no slower, and any machine with that card runs it. For a CPU, kernels at -O2 take a third of the time that they take
    at -O3, and give the same bits as fast (0.96 to 0.99 of the time of a call): their loops are vectorised already.
    Four fifths of a region's library would be symbols for debuggers. Where the linker can leave them out, they are not
    written, for a large wrapper (3,500 lines) takes 6.2 s with line tables and 3.9 s without. What is shared names no
    folder of this machine.
    """
    builder = require("torch._inductor.cpp_builder")
    usual = require("torch._inductor.cpp_builder._get_optimization_cflags")
    baseline = _BASELINES.get(platform.machine().lower())
    cache = require("torch._inductor.runtime.cache_dir_utils.cache_dir")()
    unnamed = [f"fmacro-prefix-map={folder}=." for folder in (Path(torch.__file__).parents[1], cache)]

    def changed(*args: Any, **kwargs: Any) -> Any:
        compiling, linking = usual(*args, **kwargs)
        if sys.platform == "linux":
            compiling, linking = [flag for flag in compiling if flag != "g1"] + unnamed, [*linking, "s"]
        if device.type == "cpu":
            return ["O2" if flag == "O3" else flag for flag in compiling], linking
        if baseline is None:
            return compiling, linking
        return [*(flag for flag in compiling if not flag.startswith(_NATIVE)), baseline], linking

    with replaced(builder, "_get_optimization_cflags", changed):
        yield
