"""Which of torch's exact attentions is the fastest on a GPU, measured once on each machine.

cuDNN's takes 4.6 ms of a step of SDXL's UNet on an H200 (1024x1024, batch 2), FlashAttention 2 7.2; on an A100 it is
the slower one. A graph calls the one that was chosen when it was compiled. It is right on every GPU of its
architecture, so the choice is not part of its key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ...common.errors import in_brief
from ...common.log import logger
from ...graph_cache.files import replace_text
from .toolchain import shared_folder

log = logger("compiler")

# Major compute capabilities whose cards are faster with cuDNN's: for where nothing can be measured, as where a graph is
# compiled for a GPU that this machine does not have.
_KNOWN_FASTER = (9,)
_SHAPES = ((2, 10, 4096, 64, torch.float16), (1, 24, 4096, 128, torch.bfloat16))  # of SDXL and of FLUX.1
_ROUNDS, _CALLS = 5, 8
_WORTH = 0.97  # of the other's time: below a difference of that size, either will do
_FARTHER = 2.0  # times as far from the exact result as FlashAttention's may cuDNN's be


@dataclass(frozen=True)
class Measured:
    """What a machine has shown.

    Attributes:
        cudnn: whether cuDNN's attention is faster, and as exact.
        milliseconds: by names of attentions, of a call of each of the shapes together.
    """

    cudnn: bool
    milliseconds: dict[str, float]


def by_capability(capability: int) -> bool:
    """Whether cuDNN's is the faster one on cards of a major compute capability, by what other machines have shown."""
    return capability in _KNOWN_FASTER


def is_cudnn_first(exported: torch.export.ExportedProgram, device: torch.device) -> bool:
    """Whether a graph is to call cuDNN's attention where it can. Measures nothing where torch's is not called."""
    if device.type != "cuda":
        return False
    attention = torch.ops.aten.scaled_dot_product_attention.default
    return bool(exported.graph.find_nodes(op="call_function", target=attention)) and cudnn_is_faster(device)


def cudnn_is_faster(device: torch.device) -> bool:
    """Whether cuDNN's attention is the faster one on a GPU of this machine. Measured where nobody has yet."""
    path = _path(device)
    try:
        return bool(json.loads(path.read_text(encoding="utf-8"))["cudnn"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured, or damaged
    try:
        found = measure(device)
    except Exception as error:  # of memory, or of a kernel that this card has not: a compile goes on without
        log.info("attention was not measured (%s)", in_brief(error))
        return by_capability(torch.cuda.get_device_capability(device)[0])
    log.info("attention on %s: %s", torch.cuda.get_device_name(device), found)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(found)))
    except OSError as error:
        log.info("what attention takes could not be kept (%s)", in_brief(error))
    return found.cudnn


def measure(device: torch.device) -> Measured:
    """Time both in turns, and compare them with the exact result.

    Raises:
        RuntimeError: torch's own for whatever goes wrong on the GPU.
    """
    spent = {"flash": 0.0, "cudnn": 0.0}
    exact = True
    with torch.inference_mode():
        for batch, heads, length, width, dtype in _SHAPES:
            generator = torch.Generator(device).manual_seed(0)
            shape = batch, heads, length, width
            given = [torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(3)]
            ways = _ways(given)
            exact = exact and _is_exact(given, ways)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(_ROUNDS):
                for name, call in ways.items():
                    times[name].append(_milliseconds(call, device))
            for name, found in times.items():
                spent[name] += min(found)
    return Measured(exact and spent["cudnn"] < _WORTH * spent["flash"], {k: round(v, 4) for k, v in spent.items()})


def _ways(given: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = given

    def way(backend: SDPBackend) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(query, key, value)

        return call

    return {"flash": way(SDPBackend.FLASH_ATTENTION), "cudnn": way(SDPBackend.CUDNN_ATTENTION)}


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    stream = torch.cuda.current_stream(device)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(stream)
    for _ in range(_CALLS):
        call()
    end.record(stream)
    end.synchronize()
    return begin.elapsed_time(end) / _CALLS


def _is_exact(given: list[torch.Tensor], ways: dict[str, Callable[[], torch.Tensor]]) -> bool:
    """Whether cuDNN's result is about as near to the exact one as FlashAttention's, in a part of the rows."""
    query, key, value = (one.float() for one in given)
    rows = slice(0, 256)
    expected = torch.nn.functional.scaled_dot_product_attention(query[:, :, rows], key, value)
    apart = {name: float((call()[:, :, rows].float() - expected).norm()) for name, call in ways.items()}
    return apart["cudnn"] <= _FARTHER * apart["flash"]


def _path(device: torch.device) -> Path:
    """Where it is kept what this kind of GPU has shown with these versions."""
    facts = [torch.cuda.get_device_name(device), torch.__version__, torch.version.cuda, torch.backends.cudnn.version()]
    return shared_folder() / f"attention-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"
