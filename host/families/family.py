"""What ComfyUI's families tell besides what every family does, and what is changed while any of them is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ...common import reasons
from ...common.reasons import Reason
from ...runtime import family
from ...runtime.family import Arguments
from ..comfyui.contract import Feature, Use
from ..comfyui.prompt_size import FIRST, Size, prompt_size

FIRST_SIDE, FIRST_TOKENS = 32, 77  # latent units and tokens of a usual call
PIXELS = 8  # of a side of an image, for each latent unit of SD


class HostFamily(family.Family):
    """One kind of ComfyUI's modules. `like` of an example is the patcher of the model.

    Attributes:
        supported: the models it is for, as the node names them.
        feature: by which nodes it is compiled.
        uses: what it needs of ComfyUI besides what that takes.
        folders: kinds of ComfyUI's models among which others may have graphs of the same architecture.
        entry: the module's method that the host's chain of wrappers ends in; empty: there is no such chain.
    """

    supported: ClassVar[str] = ""
    feature: ClassVar[Feature] = "model"
    uses: ClassVar[tuple[Use, ...]] = ()
    folders: ClassVar[tuple[str, ...]] = ("checkpoints", "diffusion_models")
    entry: ClassVar[str] = ""

    def foreign_argument(self, name: str) -> Reason:
        return reasons.UnknownArgument(name)

    def example(self, module: torch.nn.Module, like: Any, size: Size = FIRST) -> Arguments:
        """A usual call, for images of a size where that decides anything."""
        raise NotImplementedError

    def examples(self, module: torch.nn.Module, like: Any, dynprompt: Any) -> Sequence[Arguments]:
        """The calls that a workflow will probably make, for graphs that are restored before them."""
        return [self.example(module, like, prompt_size(dynprompt))]


def attention(func: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's scaled_dot_product_attention whatever the host prefers.

    The host's CPU default splits by free memory at trace time, and the extension kernels of other packages cannot
    be compiled; the backend picks its own kernel for this operation.
    """
    from comfy.ldm.modules.attention import attention_pytorch

    return attention_pytorch(*args, **kwargs)


@contextlib.contextmanager
def one_path(like: torch.Tensor) -> Iterator[None]:
    """Have the host's attention take one path for inputs of all sizes, as a graph for any size must.

    On CUDA, ComfyUI 0.33 asks how large its inputs are and passes small ones to torch in another way. Both compute the
    same. The host's own runs once, so that the graph's record of functions names it and what it calls.
    """
    import comfy.ops

    host_attention = comfy.ops.scaled_dot_product_attention
    if "nelement" not in getattr(getattr(host_attention, "__code__", None), "co_names", ()):
        yield
        return
    small = like.new_zeros(1, 1, 8, 8)
    host_attention(small, small, small)
    comfy.ops.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention
    try:
        yield
    finally:
        comfy.ops.scaled_dot_product_attention = host_attention


@contextlib.contextmanager
def torch_attention() -> Iterator[None]:
    """While this lasts every model attends as `attention` does, also one whose blocks take no options."""
    from comfy.ldm.modules import attention as host

    names = ("optimized_attention", "optimized_attention_masked")
    before = {name: getattr(host, name) for name in names}
    for name in names:
        setattr(host, name, host.attention_pytorch)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(host, name, function)


def of_steps(call: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a model's usual arguments that a call gives."""
    return {name: call[name] for name in ("x", "hint", "timesteps", "context", "y") if call.get(name) is not None}
