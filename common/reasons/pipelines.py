"""What a diffusers pipeline asks for that no graph serves."""

from __future__ import annotations

from .base import Reason


class Ignored(Reason):
    sentence = "left out by ignores"


class CallArgument(Reason):
    sentence = "the call passes {name}, which no graph takes"
    name: str


class ResidualInputs(Reason):
    sentence = "an adapter or a ControlNet adds residuals that no graph takes ({name})"
    name: str


class IpAdapter(Reason):
    sentence = "an IP-Adapter steers this model"


class FreeU(Reason):
    code = "freeu"
    sentence = "FreeU changes {where}; disable_freeu() turns it off"
    where: str


class AttentionProcessor(Reason):
    sentence = "{where} has the attention processor {name}, which no graph follows"
    name: str
    where: str


class AttentionBackend(Reason):
    sentence = "diffusers' attention backend is {name}, and graphs compute attention by torch's own (native)"
    name: str


class AdapterLayers(Reason):
    sentence = (
        "{library} inserted adapter layers that are no plain LoRA ({where}); fuse_lora() and then "
        "unload_lora_weights() leave their weights in the model's own layers"
    )
    library: str
    where: str


class LibraryHook(Reason):
    """Of accelerate or diffusers, on a part of a component."""

    sentence = "{name} on {where} does more than the layer itself, as offloading layer by layer does"
    name: str
    where: str


class MethodReplaced(Reason):
    sentence = "something replaced {name} of this model before it was compiled{by:()}"
    name: str
    by: str


class MethodReplacedLater(Reason):
    """After the module was compiled, by something that is not seen to call what was there."""

    sentence = (
        "something replaced {name} of this model after it was compiled{by:()}; "
        "its calls are compiled only where that calls what it replaced"
    )
    name: str
    by: str


class OtherModule(Reason):
    sentence = "the pipeline has another model here since it was compiled; compile_pipe() takes that one's calls, too"


class Removed(Reason):
    sentence = "remove() was called"


class SharedCompiled(Reason):
    sentence = "left out here, but compiled with another pipeline that shares it, so that its calls run compiled"


class GraphsOff(Reason):
    sentence = "use_graph is off"


class Dropout(Reason):
    sentence = "the model is in training mode and has dropout; eval() turns it off"


class UnusualConfig(Reason):
    sentence = "the model is configured with {name} {value}, which no graph here serves"
    name: str
    value: str


class ResultNotFinite(Reason):
    """Eager's result is not finite either."""

    sentence = "the model itself overflows in {dtype}"
    dtype: str


class TorchCompiled(Reason):
    sentence = "torch.compile runs this model"


class SavedForOther(Reason):
    """A saved graph whose key differs in the target, e.g. in the processor or in a version."""

    sentence = "the saved graph is for another machine or version ({difference}); compile and save the pipeline here"
    difference: str


class NothingSaved(Reason):
    sentence = "{folder} holds no saved graphs"
    folder: str
