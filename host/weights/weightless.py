"""A model as the host loads it, made from the header of its file: modules, dtypes and formats, and no weights.

A header has some hundred KB, its file many GB. The host's own loaders are given tensors on the meta device. Only small
tensors that describe others, such as `comfy_quant` and scales, are read.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from ...common.tensor_meta import dtype_name

_LARGEST_HEADER = 100 << 20  # bytes, safetensors' own limit
_LARGEST_DESCRIPTION = 4096  # bytes of a tensor that describes others
_LEAST_SHARE = 0.02  # of a file's bytes: norms and biases in another dtype are not what a file is called by
_GGUF, _GGUF_STRING = b"GGUF", 8
_SUFFIXES = (".safetensors", ".sft")
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class HeaderError(Exception):
    """The file's header does not tell what model it holds; the message is a sentence."""


@dataclass(frozen=True)
class Header:
    """What a file of weights tells without its weights.

    Attributes:
        tensors: by name; on the meta device, but for those that describe others.
        metadata: of the file.
    """

    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str]

    def formats(self) -> tuple[str, ...]:
        """Formats of quantised layers, then dtypes by their bytes, such as `("float8_e4m3fn", "bfloat16")`."""
        sizes: Counter[str] = Counter()
        quantised = {name: _format_of(value) for name, value in self.tensors.items() if name.endswith(".comfy_quant")}
        layers = json.loads(self.metadata.get("_quantization_metadata", "{}")).get("layers", {})
        named = {*filter(None, quantised.values()), *(str(one.get("format")) for one in layers.values())}
        for tensor in self.tensors.values():
            sizes[dtype_name(tensor.dtype)] += tensor.nbytes
        total = sum(sizes.values())
        dtypes = [name for name, size in sizes.most_common() if size >= _LEAST_SHARE * total]
        return tuple(dict.fromkeys([*sorted(named), *dtypes]))


def _format_of(description: torch.Tensor) -> str:
    return str(json.loads(bytes(description.tolist())).get("format", ""))


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file.

    Raises:
        HeaderError: the file is of another kind, or damaged.
        OSError: it cannot be read.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise HeaderError(f"{path.name} is not a safetensors file, so that its family is known once it is loaded")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _LARGEST_HEADER:
                raise ValueError("no header")
            rows = json.loads(file.read(length))
            metadata = rows.pop("__metadata__", None) or {}
            tensors = {}
            for name, row in rows.items():
                shape, dtype = row["shape"], _DTYPES[row["dtype"]]
                begin, end = row["data_offsets"]
                if _describes(name, dtype, end - begin):
                    file.seek(8 + length + begin)
                    tensors[name] = torch.frombuffer(bytearray(file.read(end - begin)), dtype=dtype).reshape(shape)
                else:
                    tensors[name] = torch.empty(shape, dtype=dtype, device="meta")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise HeaderError(f"{path.name} is damaged, or no safetensors file ({error}). Copy it here again") from error
    return Header(tensors, metadata)


def _describes(name: str, dtype: torch.dtype, size: int) -> bool:
    described = dtype == torch.uint8 or "scale" in name or "scaled_fp8" in name
    return described and 0 < size <= (_LARGEST_DESCRIPTION if dtype == torch.uint8 else dtype.itemsize * 2)


def gguf_architecture(path: Path) -> str:
    """Read the architecture that a GGUF file names, such as `flux`; empty: it is no such file, or names none."""
    with path.open("rb") as file:
        start = file.read(4 + 4 + 8 + 8)  # magic, version, counts of tensors and of facts
        if start[:4] != _GGUF:
            return ""

        def text() -> str:
            return file.read(min(int.from_bytes(file.read(8), "little"), _LARGEST_DESCRIPTION)).decode(errors="replace")

        name, kind = text(), int.from_bytes(file.read(4), "little")
        return text() if (name, kind) == ("general.architecture", _GGUF_STRING) else ""


class _WithoutWeights(TorchFunctionMode):
    """What the host allocates for weights is on the meta device, and nothing is copied from there."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        elif func is torch.Tensor.copy_ and (args[0].is_meta or args[1].is_meta):
            return args[0]
        elif func is torch.Tensor.to and args[0].is_meta:
            dtype = next((one for one in (*args[1:], *kwargs.values()) if isinstance(one, torch.dtype)), args[0].dtype)
            return func(args[0], dtype)
        return func(*args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the host logs while it loads off the log: nobody loads a model."""
    thread, root = threading.get_ident(), logging.getLogger()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    root.addFilter(others)
    try:
        yield
    finally:
        root.removeFilter(others)


def load(header: Header, checkpoint: bool) -> Any:
    """Return the host's patcher of a model, or None where the host does not know the model.

    Args:
        checkpoint: whether the file is loaded as a checkpoint, or as a diffusion model alone.
    """
    import comfy.sd

    tensors, metadata = dict(header.tensors), dict(header.metadata)
    with torch.no_grad(), _quiet(), _WithoutWeights():
        if not checkpoint:
            return comfy.sd.load_diffusion_model_state_dict(tensors, metadata=metadata)
        made = comfy.sd.load_state_dict_guess_config(tensors, output_vae=False, output_clip=False, metadata=metadata)
    return None if made is None else made[0]


def load_vae(header: Header) -> Any:
    """Return the host's VAE of a file, which may be a checkpoint; None where the host finds none in it."""
    import comfy.sd

    tensors, metadata = dict(header.tensors), dict(header.metadata)
    with torch.no_grad(), _quiet(), _WithoutWeights():
        made = comfy.sd.load_state_dict_guess_config(
            tensors, output_vae=True, output_clip=False, output_model=False, metadata=dict(metadata)
        )
        vae = comfy.sd.VAE(sd=dict(header.tensors), metadata=metadata) if made is None else made[2]
    return vae if getattr(vae, "first_stage_model", None) is not None else None
