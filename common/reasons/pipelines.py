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
class AttentionBackend(Reason):
    code = "attention_backend"
    name: str


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
class MethodReplacedLater(Reason):
    """After the module was compiled, by something that is not seen to call what was there."""

    code = "method_replaced_later"
    name: str
    by: str


@dataclass(frozen=True)
class OtherModule(Reason):
    """The pipeline has another module in a component's place since it was compiled."""

    code = "other_module"


@dataclass(frozen=True)
class Removed(Reason):
    code = "removed"


@dataclass(frozen=True)
class SharedCompiled(Reason):
    """A pipeline left a component out that another one has compiled."""

    code = "shared_compiled"


@dataclass(frozen=True)
class GraphsOff(Reason):
    """OneDiff's option `use_graph` is off."""

    code = "graphs_off"


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
