"""OneDiff's nodes under their own ids, so that workflows made with them load and run.

`_NODES` is the table of them: ids, names of inputs, their order and their defaults are OneDiff's. Each node runs what
took its place here, or hands on its input and says what it no longer does. All are deprecated, so that ComfyUI marks
them and leaves them out of its search. Inputs that have no meaning here (`inplace`, the options of OneDiff's compilers)
are accepted with any value. No input names a graph file that is read or written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from comfy_api.latest import io
from typing_extensions import override

from ..common import reasons
from ..common.log import logger
from ..host.comfyui import comfyui_nodes, loader
from ..host.show import results
from . import onediff_actions as actions

log = logger("nodes")

_CUSTOM, _QUANTIZATION, _DEEP_CACHE, _TORCH_COMPILE = (
    io.Custom(name) for name in ("CUSTOM_BOOSTER", "QuantizationBooster", "DeepCacheBooster", "TorchCompileBooster")
)

_CONTROL_NET = "Compile ControlNet (OneGraph)"
_MODEL, _VAE, _CHECKPOINT = "Compile Model (OneGraph)", "Compile VAE (OneGraph)", "Load Checkpoint (OneGraph)"
_QUANTIZED, _SKIPPED, _OPTIONS = reasons.NothingQuantized(), reasons.NoStepSkipped(), reasons.OwnCompilerOptions()
_GRAPHS = reasons.GraphsByThemselves()

Slots = tuple[type[io.ComfyTypeIO], ...]


@dataclass(frozen=True)
class ReplacedNode:
    """One of OneDiff's nodes.

    Attributes:
        node_id: OneDiff's.
        title: the name that the user sees.
        now: the node that takes its place; empty for one that has nothing left to do.
        inputs: OneDiff's, in its order.
        outputs: types of its outputs.
        run: the outputs' values, in order, for the inputs' values.
        is_output: whether the node ends a workflow.
    """

    node_id: str
    title: str
    now: str
    inputs: Callable[[], list[io.Input]]
    outputs: Slots
    run: actions.Run
    is_output: bool = False


# The table --------------------------------------------------------------------------------------------------


def _custom_booster() -> io.Input:
    return _CUSTOM.Input("custom_booster", optional=True)


def _inplace(default: bool = True) -> io.Input:
    return io.Boolean.Input("inplace", optional=True, default=default, label_on="yes", label_off="no")


def _choice(name: str, *options: str) -> io.Input:
    return io.Combo.Input(name, options=[*options], optional=True)


def _number(name: str, default: int, least: int, most: int) -> io.Input:
    return io.Int.Input(name, default=default, min=least, max=most, optional=True)


def _ignored(*names: str) -> list[io.Input]:
    """Choices that have no meaning here, each with the value false by default."""
    return [io.Boolean.Input(name, default=False, optional=True) for name in names]


def _word(name: str, default: str = "") -> io.Input:
    return io.String.Input(name, default=default, optional=True)


def _checkpoint_name() -> io.Input:
    return io.Combo.Input("ckpt_name", options=loader.checkpoint_names())


def _deep_cache() -> list[io.Input]:
    return [
        _number("cache_interval", 3, 1, 1000),
        _number("cache_layer_id", 0, 0, 12),
        _number("cache_block_id", 1, 0, 12),
        _number("start_step", 0, 0, 1000),
        _number("end_step", 1000, 0, 1000),
    ]


_LOADED: Slots = (io.Model, io.Clip, io.Vae)
_NODES: tuple[ReplacedNode, ...] = (
    ReplacedNode(
        "ModelSpeedup", "Model Speedup", _MODEL,
        lambda: [io.Model.Input("model"), _custom_booster(), _inplace()], (io.Model,), actions.compile_model(),
    ),
    ReplacedNode(
        "VaeSpeedup", "VAE Speedup", _VAE,
        lambda: [io.Vae.Input("vae"), _custom_booster(), _inplace()], (io.Vae,), actions.compile_vae,
    ),
    ReplacedNode(
        "ControlnetSpeedup", "ControlNet Speedup", _CONTROL_NET,
        lambda: [io.ControlNet.Input("control_net"), _inplace(), _custom_booster()], (io.ControlNet,),
        actions.compile_control_net,
    ),
    ReplacedNode(
        "OneDiffCheckpointLoaderSimple", "Load Checkpoint - OneDiff", _CHECKPOINT,
        lambda: [_checkpoint_name(), _choice("vae_speedup", "disable", "enable"), _custom_booster()], _LOADED,
        actions.load_checkpoint(),
    ),
    ReplacedNode(
        "OneDiffControlNetLoader", "Load ControlNet Model - OneDiff", f"Load ControlNet Model and {_CONTROL_NET}",
        lambda: [io.Combo.Input("control_net_name", options=loader.control_net_names()), _custom_booster()],
        (io.ControlNet,), actions.load_control_net,
    ),
    ReplacedNode(
        "OneDiffModelBooster", "Apply Model Booster - OneDiff", "",
        lambda: [
            _QUANTIZATION.Input("quantization_booster", optional=True),
            _DEEP_CACHE.Input("deepcache_booster", optional=True),
            _TORCH_COMPILE.Input("torchcompile_booster", optional=True),
        ],
        (_CUSTOM,), actions.merge_boosters,
    ),
    ReplacedNode(
        "OneDiffOnlineQuantizationBooster", "Online OneFlow Quantizer - OneDiff", "",
        lambda: [
            _number("quantized_conv_percentage", 100, 0, 100),
            _number("quantized_linear_percentage", 100, 0, 100),
            _number("conv_compute_density_threshold", 100, 0, 2000),
            _number("linear_compute_density_threshold", 300, 0, 2000),
        ],
        (_QUANTIZATION,), actions.make_booster(_QUANTIZED),
    ),
    ReplacedNode("OneFlowDeepcacheBooster", "OneFlow Deepcache Booster - OneDiff", "",
        _deep_cache, (_DEEP_CACHE,), actions.make_booster(_SKIPPED)),
    ReplacedNode(
        "OneDiffNexfortBooster", "Nexfort Booster - OneDiff", "",
        lambda: [
            *_ignored("fullgraph"), io.Boolean.Input("dynamic", default=True, optional=True),
            _word("mode", "max-optimize:max-autotune:low-precision"), _word("docs_link"),
        ],
        (_TORCH_COMPILE,), actions.make_booster(_OPTIONS),
    ),
    ReplacedNode(
        "OneDiffTorchCompileBooster", "Torch Compile Booster - OneDiff", "",
        lambda: [
            *_ignored("fullgraph", "dynamic"), _word("backend", "inductor"), _word("mode", "default"),
            *_ignored("disable"), _word("docs_link"),
        ],
        (_TORCH_COMPILE,), actions.make_booster(_OPTIONS),
    ),
    ReplacedNode(
        "ModuleDeepCacheSpeedup", "Model DeepCache Speedup", _MODEL,
        lambda: [io.Model.Input("model"), _choice("static_mode", "enable", "disable"), *_deep_cache()], (io.Model,),
        actions.compile_model(_SKIPPED),
    ),
    ReplacedNode(
        "OneDiffDeepCacheCheckpointLoaderSimple", "Load Checkpoint - OneDiff DeepCache", _CHECKPOINT,
        lambda: [
            _checkpoint_name(), _choice("vae_speedup", "disable", "enable"),
            _choice("static_mode", "enable", "disable"), *_deep_cache(),
        ],
        _LOADED, actions.load_checkpoint(_SKIPPED),
    ),
    ReplacedNode(
        "SVDSpeedup", "SVD Speedup", _MODEL,
        lambda: [io.Model.Input("model"), _inplace(False), _word("cache_name", "svd"), _custom_booster()], (io.Model,),
        actions.compile_model(),
    ),
    ReplacedNode(
        "BatchSizePatcher", "Batch Size Patcher", "",
        lambda: [io.Model.Input("model"), io.Latent.Input("latent_image")], (io.Model,),
        actions.pass_on("model", reasons.OneGraphServesAll("batch size")),
    ),
    ReplacedNode("ResolutionSpeedupChecker", "Speedup Checker - Resolution", "",
        lambda: [io.Latent.Input("samples")], (io.Latent,),
        actions.pass_on("samples", reasons.OneGraphServesAll("resolution"))),
    ReplacedNode("ModelGraphLoader", "Model Graph Loader", "",
        lambda: [io.Model.Input("model"), _word("graph")], (io.Model,), actions.pass_on("model", _GRAPHS)),
    ReplacedNode(
        "ModelGraphSaver", "Model Graph Saver", "",
        lambda: [io.Latent.Input("samples"), io.Model.Input("model"), _word("filename_prefix", "unet")], (),
        actions.end, is_output=True,
    ),
    ReplacedNode("VaeGraphLoader", "VAE Graph Loader", "",
        lambda: [io.Vae.Input("vae"), _word("graph")], (io.Vae,), actions.pass_on("vae", _GRAPHS)),
    ReplacedNode(
        "VaeGraphSaver", "VAE Graph Saver", "",
        lambda: [io.Image.Input("images"), io.Vae.Input("vae"), _word("filename_prefix", "vae")], (), actions.end,
        is_output=True,
    ),
)  # fmt: skip


# ComfyUI's side ---------------------------------------------------------------------------------------------


@functools.cache
def _tell(row: ReplacedNode) -> None:
    """Say once in the log that a workflow uses a node of OneDiff's."""
    log.warning("%s", reasons.NodeOfOneDiff(row.title, row.now).text)


class OneDiffNode(io.ComfyNode):
    """A node by its row of the table."""

    row: ClassVar[ReplacedNode]

    @classmethod
    @override
    def define_schema(cls) -> io.Schema:
        row = cls.row
        return io.Schema(
            node_id=row.node_id,
            display_name=row.title,
            category="model/onegraph/onediff",
            description=f"For workflows made with OneDiff. {reasons.NodeOfOneDiff(row.title, row.now).text}.",
            inputs=row.inputs(),
            outputs=[slot.Output() for slot in row.outputs],
            hidden=[io.Hidden.unique_id, io.Hidden.dynprompt],
            is_output_node=row.is_output,
            is_deprecated=True,
            has_intermediate_output=True,
            not_idempotent=True,  # the result may know its node's id: another node must not get it from the cache
        )

    @classmethod
    @override
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        _tell(cls.row)
        node = (
            actions.ExecutedNode(cls.hidden.unique_id, cls.hidden.dynprompt)
            if cls.hidden
            else actions.ExecutedNode(None, None)
        )
        return io.NodeOutput(*cls.row.run(inputs, node), ui=results.ui(node.node_id))


@functools.cache
def nodes() -> tuple[type[OneDiffNode], ...]:
    """OneDiff's nodes, all of them."""
    return tuple(type(row.node_id, (OneDiffNode,), {"row": row}) for row in _NODES)


def free_nodes() -> list[type[OneDiffNode]]:
    """Those whose ids no other custom node pack has registered; a pack that loads later replaces ours."""
    free = []
    for node in nodes():
        if comfyui_nodes.has_node(node.row.node_id):
            log.info("%s", reasons.NodeIdTaken(node.row.node_id).text)
        else:
            free.append(node)
    return free
