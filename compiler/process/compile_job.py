"""The steps of a compile in the main worker: rebuild the module, export, compile, check."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import backends
from ...backends import Backend, CompilesForAbsent, Rebuilds, Runner
from ...backends.worker_pool import WorkerPool
from ...common.errors import CompileError, LoadError
from ...common.outputs import is_finite, tensors_of
from ...common.tensor_meta import TensorMeta
from ...common.zeros import zeros
from ...graph_cache.manifest import CodeRecord
from ...signature.call_rules import CallRules
from .. import export, skeleton
from ..blocks import attention
from ..blocks.capture import Settings
from ..blocks.kind import KindCalls, capture_kind
from ..code import code_record
from .job import Checked, ClientModule, Done, Job, Message, Stage

Inputs = tuple[torch.Tensor, ...]
Report = Callable[[Message], None]


@dataclass(frozen=True)
class _Built:
    """A compiled graph that nothing has checked yet.

    Attributes:
        weights: zeros in place of all weights of the module, by name.
        used: names of the weights that the exported graph uses.
        code: the functions that were captured; None where the graph was rebuilt from another one.
        signature: of a block's graph.
        outputs: how many tensors the exported graph returns.
    """

    files: list[str]
    weights: Mapping[str, torch.Tensor]
    used: frozenset[str] = frozenset()
    code: CodeRecord | None = None
    signature: CallRules | None = None
    outputs: int = 1


def run(job: Job, staging: Path, pool: WorkerPool, report: Report) -> Done:
    """Compile a job into the staging folder and check the graph.

    Args:
        pool: the processes that share the work.

    Raises:
        OneGraphError: the model cannot be captured, or its graph cannot be compiled, loaded or trusted.
    """
    torch.set_grad_enabled(False)
    backend = backends.get(job.backend)
    device = torch.device(job.device)
    if job.rebuild_from is None and not job.check_only:
        backend.prepare(device, job.workers)
    if job.check_only:
        report(Stage("checking"))
        return _check_only(job, staging, backend, _trial_inputs(job, None, device), report)
    if job.rebuild_from is None:
        gc.disable()  # a seventh of a compile's time; nearly everything it visits lives until the end
        built = _compile(job, staging, backend, device, pool, report)
        inputs = _trial_inputs(job, built.signature, device)
    else:
        report(Stage("compiling"))
        inputs = _trial_inputs(job, None, device)
        weights = {
            w.name: torch.empty_strided(w.shape, w.stride, dtype=w.torch_dtype, device=device).zero_()
            for w in job.constants
        }
        assert isinstance(backend, Rebuilds)
        built = _Built(backend.rebuild(job.rebuild_from, inputs, staging), weights)
    report(Stage("checking"))
    return _check(built, backend.load(staging, device), inputs, report)


def compile_for_absent(job: Job, staging: Path, report: Report) -> Done:
    """Compile a job for a GPU that this process pretends to have. The graph is not run: its first use is its check.

    Raises:
        OneGraphError: the model cannot be captured, its graph cannot be compiled, or is for another GPU.
    """
    torch.set_grad_enabled(False)
    backend = backends.get(job.backend)
    if not isinstance(backend, CompilesForAbsent):
        raise CompileError(f"{backend.name} compiles for this machine alone.")
    device = torch.device(job.device)
    built = _compile(job, staging, backend, device, WorkerPool(staging), report)
    report(Stage("checking"))
    names = backend.check_absent(staging, device, built.weights)
    constants = tuple(TensorMeta.of(name, built.weights[name]) for name in _all_read(names, built))
    signature = None if built.signature is None else built.signature.to_json()
    return Done(tuple(built.files), constants, built.code, built.outputs, signature)


def _trial_inputs(job: Job, signature: CallRules | None, device: torch.device) -> Inputs:
    """A call of the graph."""
    if signature is None and job.block is not None:
        signature = CallRules.from_json(job.block["signature"], job.block["packages"])
    if signature is not None:
        return tuple(signature.trial_inputs(device))
    return export.example_inputs(job.shapes, job.example_sizes, device)


def _check_only(job: Job, staging: Path, backend: Backend, inputs: Inputs, report: Report) -> Done:
    """Load and call a graph that was compiled before, and try whether the call can be captured."""
    try:
        if job.block is not None:  # blocks call operations that the client's modules register
            _prepared(job.client).block_settings()
        runner = backend.load(staging, inputs[0].device)
    except (LoadError, ImportError) as error:  # its files are right: what it lacks is here
        raise CompileError(str(error), lasting=False) from error
    return _check(_Built([*job.check_only], zeros(job.constants, inputs[0].device)), runner, inputs, report)


def _compile(
    job: Job, staging: Path, backend: Backend, device: torch.device, pool: WorkerPool, report: Report
) -> _Built:
    """Rebuild the module, capture and compile it."""
    client = _prepared(job.client)
    with backend.capture_settings():
        module = skeleton.load(job.skeleton, device, getattr(client, "class_of", skeleton.no_class))
        report(Stage("capturing"))
        with _stand_ins(job, client):
            seen: code_record.Ran = set()
            exported, signature, wrapped, served = _captured(job, client, module, device, seen)
            code = code_record.record(seen, module, client.rules())
        report(Stage("compiling"))
        files = backend.compile(exported, _trial_inputs(job, signature, device), staging, pool, served)
    weights = [*wrapped.named_parameters(remove_duplicate=False), *wrapped.named_buffers(remove_duplicate=False)]
    outputs = len(exported.graph_signature.user_outputs)
    return _Built(files, dict(weights), _used_weights(exported), code, signature, outputs)


def _stand_ins(job: Job, client: Any) -> contextlib.AbstractContextManager[Any]:
    """What stands in place of attention functions, for a graph that calls them."""
    if job.block is None or job.block["attention"] != "called":
        return contextlib.nullcontext()
    settings: Settings = client.block_settings()
    return settings.standing_in()


def _captured(
    job: Job, client: Any, module: torch.nn.Module, device: torch.device, seen: code_record.Ran
) -> tuple[torch.export.ExportedProgram, CallRules | None, torch.nn.Module, Sequence[Sequence[Sequence[int]]]]:
    """Capture the module for all calls that the job names; the graph, what holds the weights by its names, and shapes
    of its inputs in some of these calls.

    Args:
        seen: gets the code of what runs inside of the graph.
    """
    watching = functools.partial(code_record.watched, seen)
    if job.block is not None:
        kind = KindCalls.from_json(job.block)
        captured = capture_kind(module, kind, device, client.block_settings(), client.rules(), watching)
        return captured.program, captured.signature, captured.module, captured.served
    wrapped: torch.nn.Module = client.wrap(job.component, module, [spec.name for spec in job.export_shapes.inputs])
    with watching():
        program = export.capture(wrapped, job.export_shapes, job.example_sizes, device)
    served = job.export_shapes.rules.samples(len(job.export_shapes.inputs))
    return program, None, wrapped, served


def _prepared(client: ClientModule) -> Any:
    module = importlib.import_module(client.module, __package__.partition(".")[0])
    module.prepare(client.state)
    return module


def _used_weights(exported: torch.export.ExportedProgram) -> frozenset[str]:
    """Return the names of the weights that an exported graph uses."""
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return frozenset(
        names[n.name] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names and n.users
    )


def _all_read(names: Sequence[str], built: _Built) -> Sequence[str]:
    """The names of the weights that a graph lists, among which are all that its code reads. Raises CompileError.

    A weight that the code never reads may be left out of the graph; one that it reads but does not list has been
    compiled in by value, and other checkpoints would run with this one's. The exported graph tells.
    """
    inlined = sorted((set(built.weights) - set(names)) & built.used)
    if inlined:
        raise CompileError(
            f"The compiler put the weight {inlined[0]} into the code by value; it runs uncompiled instead."
        )
    return names


def _check(built: _Built, runner: Runner, inputs: Inputs, report: Report) -> Done:
    """Run the finished graph once, here where a crash costs nothing, and try whether the call can be captured.

    Raises:
        CompileError: the graph does not read exactly the weights that it uses, or computes no finite values.
    """
    names = runner.constant_names()
    unknown = set(names) - set(built.weights)
    if unknown:
        raise CompileError(f"The graph wants {sorted(unknown)[0]}, which is no weight of the model.")
    _all_read(names, built)
    # Models divide by numbers such as a VAE's scale. A runner knows addresses alone: all live until the last call.
    zeros_or_one = ((name, built.weights[name]) for name in names)
    weights = {name: torch.ones_like(value) if value.numel() == 1 else value for name, value in zeros_or_one}
    runner.bind(weights)
    with attention.attending(attention.Zeros()):  # which some graphs of blocks call
        output = runner(*inputs)
        if not is_finite(output):
            later = "but finite ones" if is_finite(runner(*inputs)) else "and again"
            raise CompileError(
                f"The finished graph returned values that are not finite for zero weights, {later} when run once more."
            )
        constants = tuple(TensorMeta.of(name, value) for name, value in weights.items())
        signature = None if built.signature is None else built.signature.to_json()
        checked = Checked(tuple(built.files), constants, built.code, len(tensors_of(output)), signature)
        report(checked)
        # From here on nothing that goes wrong makes the graph worse than it is.
        capturable = runner.cuda_graphs is not None and runner.cuda_graphs.try_out(*inputs)
    return Done(**vars(checked), cuda_graphs=capturable)
