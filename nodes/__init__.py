"""The nodes ComfyUI shows. Thin: schema, texts and one call into host/."""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io
from typing_extensions import override

from . import onediff
from .compile_clip import OneGraphCompileCLIP
from .compile_controlnet import OneGraphCompileControlNet
from .compile_model import OneGraphCompileModel
from .compile_vae import OneGraphCompileVAE
from .load_checkpoint import OneGraphLoadCheckpoint

# The pack's own, which ComfyUI's search finds.
NODES: tuple[type[io.ComfyNode], ...] = (
    OneGraphCompileModel,
    OneGraphCompileVAE,
    OneGraphCompileControlNet,
    OneGraphCompileCLIP,
    OneGraphLoadCheckpoint,
)


class OneGraphExtension(ComfyExtension):
    """The pack as ComfyUI's V3 node API sees it."""

    @override
    async def on_load(self) -> None:
        from ..host import families
        from ..host.comfyui import contract, options
        from ..host.page import routes

        contract.check((family.feature, family.uses) for family in families.registered())
        options.follow()
        routes.register()

    @override
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [*NODES, *onediff.free_nodes()]
