"""Values that are not finite: seen without waiting for the device at each tile, and put right by float32."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ....common import reasons
from ....common.reasons import Reason
from ....common.refused import Refused
from ....common.tensor_meta import dtype_name
from ....runtime.request import Request
from ...families import HostFamily
from ..run import HostRun

# By key digest: a request and whether all results of its graph were finite, as a flag on the device.
Flags = dict[str, tuple[Request, torch.Tensor]]


def gather(flags: Flags, request: Request, served: torch.Tensor) -> None:
    """Add a tile's result to the graph's flag, without waiting for the device."""
    flag = torch.isfinite(served).all()
    earlier = flags.get(request.key.digest)
    flags[request.key.digest] = (request, flag if earlier is None else earlier[1] & flag)


def not_finite(flags: Flags) -> list[Request]:
    """Whose graphs gave values that are not finite since the last look. Waits for the device, once."""
    gathered = list(flags.values())
    flags.clear()
    if not gathered:
        return []
    finite = torch.stack([flag for _, flag in gathered]).tolist()
    return [request for (request, _), good in zip(gathered, finite, strict=True) if not good]


def random_state(vae: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    on_gpu = vae.device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state(vae.device) if on_gpu else None


def set_random_state(vae: Any, state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    """An encode that runs once more draws the numbers that it drew before."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], vae.device)


def recomputed_in_float32(
    family: HostFamily, run: HostRun, module: torch.nn.Module, x: torch.Tensor
) -> tuple[torch.Tensor | None, Reason]:
    """What float32 gives where eager overflows, or None, and the reason for the user."""
    exact = None
    if x.dtype in (torch.float16, torch.bfloat16):
        with run.weights(module) as whole:
            exact = None if isinstance(whole, Refused) else _in_float32(family, whole, x)
    return exact, reasons.VaeOverflows(dtype_name(x.dtype), exact is not None)


def _in_float32(family: HostFamily, module: torch.nn.Module, image: torch.Tensor) -> torch.Tensor | None:
    """Decode or encode by a float32 copy of the weights, gone afterwards; None when that overflows too."""
    exact: Any = copy.deepcopy(module).float()
    output = family.run(exact, {"x": image.float()})
    assert isinstance(output, torch.Tensor)
    result = output.to(image.dtype)
    return result if bool(torch.isfinite(result).all()) else None
