"""Small diffusion transformers whose layers are ComfyUI-GGUF's own, or those of a pack of the same form."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from . import dits
from .gguf_files import KINDS, packed, random_bytes

_IMITATION = Path(__file__).parents[1] / "packs" / "ggml"
PACKS = {"imitation": _IMITATION, "ComfyUI-GGUF": Path(os.environ.get("COMFYUI_GGUF_PATH") or "/nonexistent")}


def pack(which: str) -> Any:
    """The modules of a pack, loaded as the host loads custom nodes: under the path of its folder."""
    folder = PACKS[which]
    name = str(folder).replace(".", "_x_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    modules = {one: importlib.import_module(f"{name}.{one}") for one in ("ops", "dequant", "nodes")}
    return SimpleNamespace(**modules)


def layer(which: str, linear: torch.nn.Linear, kind: Any) -> Any:
    """A pack's Linear with a layer's weight written in a type, and its bias in float32; on a GPU with other weights."""
    ops = pack(which).ops
    made = ops.GGMLOps.Linear(linear.in_features, linear.out_features, linear.bias is not None)
    values = linear.weight.detach().float()
    plain = {KINDS.F32: torch.float32, KINDS.F16: torch.float16}
    if kind in plain:
        memory = values.to(plain[kind])
    elif values.is_cuda:  # gguf writes on the CPU, minutes for a model of full size
        memory = random_bytes(*values.shape, kind, {"Q8_0": 2e-4, "Q4_0": 3e-3}.get(kind.name, 1e-4), values.device)
    else:
        memory = packed(values, kind)
    tensor = ops.GGMLTensor(memory, tensor_type=kind, tensor_shape=values.size(), patches=[])
    made.weight = torch.nn.Parameter(tensor, requires_grad=False)
    if linear.bias is not None:
        bias = linear.bias.detach().float()
        tensor = ops.GGMLTensor(bias, tensor_type=KINDS.F32, tensor_shape=bias.size(), patches=[])
        made.bias = torch.nn.Parameter(tensor, requires_grad=False)
    return made.eval()


def load(
    which: str,
    name: str,
    kind: Any,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    **unet: Any,
) -> Any:
    """A MODEL of a family whose blocks' layers have weights of a type, as the pack's loader makes it."""
    model = dits.load(name, seed, dtype, device, **unet)
    for option in ("dequant_dtype", "patch_dtype"):
        setattr(pack(which).ops.GGMLOps.Linear, option, None)  # the loader's default
    module = model.model.diffusion_model
    size = 32 if kind.name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL") else 256
    for path, one in [*module.named_modules()]:
        if isinstance(one, torch.nn.Linear) and ("blocks." in path or "layers." in path):
            parent, _, last = path.rpartition(".")
            chosen = kind if one.in_features % size == 0 else KINDS.F16  # as files have it
            setattr(module.get_submodule(parent), last, layer(which, one, chosen))
    return pack(which).nodes.GGUFModelPatcher.clone(model)
