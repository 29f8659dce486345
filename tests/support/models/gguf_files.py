"""GGUF weights of diffusers: a layer of each type, and a model's file that diffusers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch

KINDS = gguf.GGMLQuantizationType
# Where a block of a type that gguf only reads has its float16 scales, by bytes.
_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def packed(values: torch.Tensor, kind: Any) -> torch.Tensor:
    """Values [rows, columns] in a type. Of one that gguf cannot write: as many random ones."""
    if kind.name not in _SCALES:
        return torch.from_numpy(gguf.quants.quantize(values.float().numpy(), kind))
    return random_bytes(*values.shape, kind, 1e-4)


def random_bytes(rows: int, columns: int, kind: Any, scale: float, device: torch.device | None = None) -> torch.Tensor:
    """Weights [rows, columns] in a type whose groups all have one scale, and whose other bytes are random."""
    size, length = gguf.GGML_QUANT_SIZES[kind]
    generator = torch.Generator(device or "cpu").manual_seed(rows * columns)
    found = torch.randint(
        0, 256, (rows, columns // size, length), generator=generator, dtype=torch.uint8, device=device
    )
    for start in _SCALES.get(kind.name, (0,)):
        found[..., start : start + 2] = torch.tensor([scale], dtype=torch.float16, device=device).view(torch.uint8)
    return found.reshape(rows, -1)


def layer(kind: Any, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """diffusers' Linear [64, 256] with a bias, which computes in a dtype."""
    from diffusers.quantizers.gguf.utils import GGUFLinear, GGUFParameter

    generator = torch.Generator().manual_seed(seed)
    made = GGUFLinear(256, 64, bias=True, compute_dtype=dtype).requires_grad_(False)
    made.bias = torch.nn.Parameter(torch.randn(64, generator=generator), requires_grad=False)
    made.weight = GGUFParameter(packed(torch.randn(64, 256, generator=generator), kind), quant_type=kind)
    return made


def loaded(model: Any, folder: Path, kind: Any = KINDS.Q8_0) -> Any:
    """A model whose blocks' Linears are written in a type, and read by diffusers."""
    from diffusers import GGUFQuantizationConfig

    file, config = folder / "model.gguf", folder / "config"
    model.save_config(config)
    writer = gguf.GGUFWriter(str(file), "diffusion")
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 2 and "blocks" in name:
            writer.add_tensor(name, packed(tensor, kind).numpy(), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    computed = GGUFQuantizationConfig(compute_dtype=torch.float32)
    read = {"config": str(config), "quantization_config": computed, "torch_dtype": torch.float32}
    return type(model).from_single_file(str(file), **read)


def write(state: dict[str, torch.Tensor], file: Path, family: str, kind: Any) -> None:
    """Write a model's file as ComfyUI-GGUF's loader reads it.

    Matrices of blocks are in a type, where rows hold whole groups of it; all else is in float32.
    """
    size, _ = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(str(file), family)
    for name, tensor in state.items():
        if tensor.ndim == 2 and "blocks" in name and tensor.shape[1] % size == 0:
            writer.add_tensor(name, packed(tensor, kind).numpy(), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
