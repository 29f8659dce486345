"""Sentences: what a diffusers pipeline asks for that no graph serves."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.Ignored) -> str:
    return "left out by ignores"


@text.register
def _(r: reasons.CallArgument) -> str:
    return f"the call passes {r.name}, which no graph takes"


@text.register
def _(r: reasons.ResidualInputs) -> str:
    return f"an adapter or a ControlNet adds residuals that no graph takes ({r.name})"


@text.register
def _(r: reasons.IpAdapter) -> str:
    return "an IP-Adapter steers this model"


@text.register
def _(r: reasons.FreeU) -> str:
    return f"FreeU changes {r.where}; disable_freeu() turns it off"


@text.register
def _(r: reasons.AttentionProcessor) -> str:
    return f"{r.where} has the attention processor {r.name}, which no graph follows"


@text.register
def _(r: reasons.AttentionBackend) -> str:
    return f"diffusers' attention backend is {r.name}, and graphs compute attention by torch's own (native)"


@text.register
def _(r: reasons.AdapterLayers) -> str:
    return (
        f"{r.library} inserted adapter layers that are no plain LoRA ({r.where}); "
        "fuse_lora() and then unload_lora_weights() leave their weights in the model's own layers"
    )


@text.register
def _(r: reasons.LibraryHook) -> str:
    return f"{r.name} on {r.where} does more than the layer itself, as offloading layer by layer does"


@text.register
def _(r: reasons.MethodReplaced) -> str:
    return f"something replaced {r.name} of this model before it was compiled{r.by and f' ({r.by})'}"


@text.register
def _(r: reasons.MethodReplacedLater) -> str:
    return (
        f"something replaced {r.name} of this model after it was compiled{r.by and f' ({r.by})'}; "
        "its calls are compiled only where that calls what it replaced"
    )


@text.register
def _(r: reasons.OtherModule) -> str:
    return "the pipeline has another model here since it was compiled; compile_pipe() takes that one's calls, too"


@text.register
def _(r: reasons.Removed) -> str:
    return "remove() was called"


@text.register
def _(r: reasons.SharedCompiled) -> str:
    return "left out here, but compiled with another pipeline that shares it, so that its calls run compiled"


@text.register
def _(r: reasons.GraphsOff) -> str:
    return "use_graph is off"


@text.register
def _(r: reasons.Dropout) -> str:
    return "the model is in training mode and has dropout; eval() turns it off"


@text.register
def _(r: reasons.UnusualConfig) -> str:
    return f"the model is configured with {r.name} {r.value}, which no graph here serves"


@text.register
def _(r: reasons.ResultNotFinite) -> str:
    return f"the model itself overflows in {r.dtype}"


@text.register
def _(r: reasons.TorchCompiled) -> str:
    return "torch.compile runs this model"


@text.register
def _(r: reasons.SavedForOther) -> str:
    return f"the saved graph is for another machine or version ({r.difference}); compile and save the pipeline here"


@text.register
def _(r: reasons.NothingSaved) -> str:
    return f"{r.folder} holds no saved graphs"
