"""What a diffusers pipeline asks for that no graph serves."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class Ignored(Reason):
    code = "ignored"


@dataclass(frozen=True)
class CallArgument(Reason):
    code = "call_argument"
    name: str


@dataclass(frozen=True)
class ResidualInputs(Reason):
    code = "residual_inputs"
    name: str


@dataclass(frozen=True)
class IpAdapter(Reason):
    code = "ip_adapter"


@dataclass(frozen=True)
class FreeU(Reason):
    code = "freeu"
    where: str


@dataclass(frozen=True)
class AttentionProcessor(Reason):
    code = "attention_processor"
    name: str
    where: str


@dataclass(frozen=True)
class AdapterLayers(Reason):
    code = "adapter_layers"
    library: str
    where: str


@dataclass(frozen=True)
class LibraryHook(Reason):
    """Of accelerate or diffusers, on a part of a component."""

    code = "library_hook"
    name: str
    where: str


@dataclass(frozen=True)
class MethodReplaced(Reason):
    code = "method_replaced"
    name: str
    by: str


@dataclass(frozen=True)
class Dropout(Reason):
    code = "dropout"


@dataclass(frozen=True)
class UnusualConfig(Reason):
    code = "unusual_config"
    name: str
    value: str


@dataclass(frozen=True)
class ResultNotFinite(Reason):
    """Eager's result is not finite either."""

    code = "result_not_finite"
    dtype: str


@dataclass(frozen=True)
class TorchCompiled(Reason):
    code = "torch_compiled"


@dataclass(frozen=True)
class SavedForOther(Reason):
    """A saved graph whose key differs in the target, e.g. in the processor or in a version."""

    code = "saved_for_other"
    difference: str


@dataclass(frozen=True)
class NothingSaved(Reason):
    code = "nothing_saved"
    folder: str
