"""What the user can do about a reason: a name, for which the page has a sentence in each language.

Reasons of commands alone are not here; each of their sentences says what to do.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from . import reasons as r
from .reasons import Reason

SAID = "said"  # the reason's own sentence says what to do
BY_REMEDY: Mapping[str, tuple[type[Reason], ...]] = {
    # Sizes
    "size_in_range": (r.OutOfRange,),
    "compiled_size": (r.OtherSize,),
    "multiple_of_64": (r.NotAMultiple,),
    "any_size": (r.TooManyExactSizes,),
    "wait_or_bake": (r.NoGraph, r.OtherKey, r.GraphRemoved),
    # Nothing is to be done
    "sizes_come_again": (r.SizeCameOnce, r.ResolutionVaries),
    "first_step": (r.BlockRecorded,),
    "eager_is_faster": (r.SlowerThanEager, r.BlockSmall),
    "later_run": (r.CompilesInBackground, r.StillCompiling, r.CompiledAgainLater, r.TrialPending),
    "compiled_anew": (
        r.Damaged, r.OtherHostVersion, r.WeightDiffers, r.NoSuchWeight, r.GraphClosed, r.UnreadableNow,
        r.DiedOnceWhileLoading, r.EachSizeOwnGraph, r.OneGraphForAnySize, r.SizeCameAgain, r.TilesNeverCompile,
        r.GraphWithdrawn,
    ),
    "image_is_right": (
        r.BlocksNotCalled, r.BlockArgument, r.BlockSizes, r.BlockInPieces, r.BlockShared, r.BlockWrites,
        r.BlockElsewhere, r.TooManyKinds, r.CallCaptured,
        r.UnusualInputs, r.NotPlainInputs, r.NotImages, r.InputCount, r.InputDevice, r.InputDtype, r.InputRank,
        r.InputLength, r.InputsDisagree, r.NotPlainWeight, r.Gradients, r.NothingCompiled, r.UnusualResidual,
        r.ResidualSize, r.EagerNotFinite, r.GraphNotFinite, r.WeightsMoving, r.OffloadedWeights,
    ),
    "not_served": (
        r.NotCompilable, r.VideoFrames, r.UnionControlNet, r.VideoVae, r.OwnTiling, r.NotACompilableVae, r.NoTextBlocks,
        r.SeveralFrames, r.UnusualVae, r.SplitBatches, r.BackendCannotServe,
    ),
    "quarantined": (
        r.FirstUseFailed, r.SpotCheckFailed, r.NotFinite, r.OtherResult, r.TooFarFromEager, r.TooFarFromExact,
        r.Quarantined, r.DiedWhileLoading, r.DiedInTrial,
    ),
    # The workflow, other nodes and packs
    "remove_node": (
        r.BlockChanged, r.BlockReplaced, r.PatchedBy, r.ReplacedBy, r.ObjectPatch, r.Injection, r.WeightWrapper,
        r.VaeMethodReplaced, r.VaeCopied, r.OuterReplaced, r.WeightComputed,
    ),
    "remove_option": (r.BlockOption, r.ModelOption, r.UnknownArgument, r.VaeOptions, r.CallArgument),
    "remove_pack": (
        r.FunctionReplaced, r.ForwardReplaced, r.ForwardHook, r.ReplacedPart, r.Autocast, r.DispatchMode,
        r.DefaultDtype, r.AttentionCallsModel, r.AttentionResult,
    ),
    "one_compiler": (r.TorchCompile, r.TorchCompiled),
    "usual_attention": (r.ChosenAttention,),
    "connect_node": (r.NoNode,),
    # The model's file
    "other_precision": (r.WeightFormat, r.QuantisedLayer),
    "fp32_vae": (r.VaeOverflows, r.Float32Failed),
    # Memory and disk
    "more_vram": (r.WeightElsewhere, r.LowVram, r.WeightCast, r.NoRoomForWeights, r.DynamicVramMoves),
    "smaller_size": (r.MemoryRanOut, r.GraphDoesNotFit),
    "empty_queue": (r.CompileDoesNotFit, r.CompileDeferred),
    # Installation
    "restart": (r.NeedsRestart,),
    "install_compiler": (r.NoCompiler,),
    "install_package": (r.MissingPackage, r.OtherVersion, r.PackageTooNew, r.NeedsCryptography),
    "other_backend": (r.NoGpu, r.NoKernels, r.WrongDeviceType),
    "update_torch": (r.TorchTooOld,),
    "update": (r.NewerManifest, r.OlderManifest, r.NewerHost, r.HostLacks),
    "made_elsewhere": (r.MadeForAnother,),
    "put_checkpoint_back": (r.CheckpointGone,),
    # Whose graphs are loaded
    "import_it": (r.Unsigned,),
    "trust_publisher": (r.UnknownPublisher, r.WrongPublisherSignature),
    "own_folder": (r.ForeignOwner, r.WritableByOthers, r.Untrusted),
    "check_store": (r.RemoteStore,),
    # Something of the pack itself
    "report": (
        r.BindFailed, r.CallFailed, r.NotInspected, r.CaptureFailed, r.CompileFailed, r.LoadFailed,
        r.NotComparedExactly,
    ),
    SAID: (
        r.MemoryPlanned, r.PagedWeights, r.LibraryWeight, r.SystemMemoryShort, r.NotSaved, r.TriedTooOften,
        r.WaitsADay, r.WaitsForMemory, r.WaitsForDisk, r.WaitsForFolder, r.WaitsForChange, r.WrongSignature,
        r.SigningKeyRefused, r.PublisherListRefused, r.NodeOfOneDiff, r.NothingQuantized, r.NoStepSkipped,
        r.OwnCompilerOptions, r.GraphsByThemselves, r.OneGraphServesAll, r.NodeIdTaken, r.HostNotAllowed,
        r.ForeignOrigin, r.NotJson, r.RequestTooLarge, r.BadRequest, r.UnknownState, r.UnknownGraph, r.UnknownJob,
        r.ServerError, r.SettingsNotSaved, r.WorkflowRefused, r.WorkflowNotHere, r.NothingInserted,
        r.TooManyJobs, r.LoadsOnly,
    ),
}  # fmt: skip
# Of what is wrong with the pack, a graph or the installation. All else is as the user or the workflow has it.
_FAULTS = frozenset({
    "report", "quarantined", "restart", "install_compiler", "install_package", "update", "own_folder", "check_store",
})  # fmt: skip
_REMEDIES = {cls: remedy for remedy, classes in BY_REMEDY.items() for cls in classes}
NAMES = frozenset(BY_REMEDY) - {SAID}


def remedy(reason: Reason) -> str | None:
    """Name what to do about a reason; None: its sentence says so, or nobody knows.

    Of a reason that only hands on another one, what to do about that.
    """
    name = remedy_of(type(reason))
    if name is None:
        because = getattr(reason, "because", None)
        return remedy(because) if isinstance(because, Reason) else None
    return None if name == SAID else name


def is_fault(reason: Reason) -> bool:
    """Tell whether something has to be mended.

    >>> is_fault(r.CompileFailed("no space")), is_fault(r.NoGraph())
    (True, False)
    """
    return remedy(reason) in _FAULTS


def remedy_of(kind: type[Reason]) -> str | None:
    """As `remedy` for a class of reasons, `SAID` too. A class without a remedy has its base's."""
    return next((_REMEDIES[cls] for cls in kind.__mro__ if cls in _REMEDIES), None)


def remedy_of_code(code: str) -> str | None:
    """As `remedy`, by a reason's code, as reports of runs have them.

    >>> remedy_of_code("no_graph")
    'wait_or_bake'
    """
    name = _by_code().get(code)
    return None if name == SAID else name


@functools.cache
def _by_code() -> Mapping[str, str]:
    return {kind.code: name for kind in r.classes() if (name := remedy_of(kind)) is not None}


@functools.cache
def sentences(section: Literal["remedies", "graphRemedies"] = "remedies") -> Mapping[str, str]:
    """Return what to do, in English, by the names of remedies; empty where the page's texts are not installed.

    Args:
        section: of those texts; `graphRemedies`: what to do about a cached graph, by the code of what is wrong with it.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        text = (Path(__file__).parents[1] / "locales/en/main.json").read_text(encoding="utf-8")
        texts: Mapping[str, str] = json.loads(text)["onegraph"][section]
        return texts
    return {}
