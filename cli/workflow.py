"""`onegraph bake`, and what `onegraph explain` does with workflows: a short run of the workflow on a ComfyUI server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .output import Json, counted, print_error, print_json, print_line
from .paths import comfyui_in, workflow_file

if TYPE_CHECKING:
    from rich.progress import Progress

NOT_ALL = 3  # exit code: something of the workflow does not run through graphs
_INTERRUPTED = 130

# Codes of reasons by which a run would compile; besides, what remote stores failed with.
_MISSES = frozenset({"no_graph", "other_key", "graph_removed"})


@dataclass
class TrialResult:
    """What the short runs of a workflow showed.

    Attributes:
        runs: by size, of each node.
        compiles: how many graphs were compiled.
        added: which nodes the workflow was run with besides its own, for people.
        models: that it samples, as the server's route `explain` tells of them.
    """

    runs: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    compiles: int = 0
    added: str = ""
    models: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""
    exit_code: int = 0

    @property
    def all_compiled(self) -> bool:
        """Whether every call of every run went through a graph."""
        reports = [report for nodes in self.runs.values() for of_node in nodes.values() for report in of_node]
        return bool(reports) and all(one["compiled_calls"] and not one["eager_codes"] for one in reports)


def bake(
    workflow: Annotated[
        Path,
        workflow_file(
            "A workflow (.json) as the editor saves or exports it, the name of one of ComfyUI's templates, a plan "
            "(.toml), or with --target a model.",
            metavar="WORKFLOW",
        ),
    ],
    comfyui: Annotated[
        Path | None, typer.Option(metavar="FOLDER", envvar="COMFYUI_PATH", help="ComfyUI's folder.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Width x height for its empty latents; may be given again.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="For the CPU although there is a GPU.")] = False,
    server: Annotated[str, typer.Option(help="The address of a running ComfyUI to use.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="An option for the ComfyUI that is started, such as --option=--novram.")
    ] = None,
    on: Annotated[
        str, typer.Option(help="For a plan: the Ray cluster, `auto` or an address such as ray://head:10001.")
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="For a plan: tell what is missing.")] = False,
    target: Annotated[
        str, typer.Option(help="For GPUs that need not be here, such as sm_86,sm_90: of models, without their weights.")
    ] = "",
    platform: Annotated[
        str, typer.Option(help="With --target, the systems: linux, windows, or both; else Linux, or the plan's.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Compile everything that a workflow needs, without rendering.

    Two steps of each sampler are run, and nothing is saved. A workflow without a node of OneGraph is run with Compile
    Model behind each loader. What is compiled stays when it is stopped, and the next time goes on from there.

    Exit code 0 if all runs through graphs then, 3 if something runs uncompiled, 1 if the workflow cannot be run, 130 if
    it was stopped. A plan is baked on a Ray cluster, into a remote store. A plan runs code: bake only plans you trust.

    With --target, the diffusion models and VAEs that a workflow names are compiled for machines with such GPUs, this
    torch or a newer one, and this ComfyUI. Their headers are read, nothing is run, and no GPU is needed.
    """
    if target or (workflow.suffix == ".toml" and _is_of_models(workflow)):
        from .bake_absent import bake_absent

        if dry_run:
            raise typer.BadParameter("--dry-run is of plans for a fleet; leave it out.")
        bake_absent(workflow, target, platform, comfyui, as_json)
    if workflow.suffix == ".toml":
        from .bake_plan import bake_plan

        bake_plan(workflow, on, dry_run, as_json)
    options = [*(["--cpu"] if cpu else []), *(option or [])]
    job = _job(workflow, comfyui, server, options)
    answer = _ask({**job, "mode": "bake", "sizes": size or [], "no_run": False}, as_json)
    _report(answer, "bake", as_json)


def _is_of_models(path: Path) -> bool:
    """Tell whether a plan is of models for absent GPUs. What is wrong with one is told when it is baked."""
    from . import plans

    try:
        return plans.read(path).absent is not None
    except (plans.PlanError, OSError):
        return False


def explain_workflow(
    workflow: Path, comfyui: Path | None, server: str, options: Sequence[str], no_run: bool, as_json: bool
) -> NoReturn:
    """Tell what models a workflow samples, and which of its nodes find their graphs here. Ends the command."""
    job = _job(workflow, comfyui, server, options)
    answer = _ask({**job, "mode": "explain", "sizes": [], "no_run": no_run}, as_json)
    if no_run and not answer.failed and any(one["verdict"] != "hit" for one in answer.models):
        answer.exit_code = answer.exit_code or NOT_ALL
    _report(answer, "explain", as_json, no_run)


def _job(workflow: Path, comfyui: Path | None, server: str, options: Sequence[str]) -> dict[str, Any]:
    """What to run, and by which ComfyUI."""
    folder = comfyui or "" if server else comfyui_in(comfyui)
    path = os.path.abspath(workflow)  # noqa: PTH100
    return {"workflow": path, "comfyui": str(folder), "server": server, "options": [*options]}


def _ask(job: dict[str, Any], as_json: bool) -> TrialResult:
    """Run a workflow in a child process, and collect what that tells of it."""
    answer = TrialResult()
    command = [sys.executable, "-m", "onegraph.host.jobs.workflow_job", json.dumps(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, _shown(as_json) as bar:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                _take(json.loads(line), answer, bar)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            answer.exit_code = _INTERRUPTED
    if process.returncode and not answer.failed and not answer.exit_code:
        answer.exit_code = _INTERRUPTED if process.returncode in (_INTERRUPTED, -2) else 1
        answer.failed = "" if answer.exit_code == _INTERRUPTED else f"it ended with code {process.returncode}"
    if answer.failed and not job["server"] and not as_json:
        import_module("torch")  # where it cannot be imported, this is why
    return answer


@contextmanager
def _shown(as_json: bool) -> Iterator[Progress | None]:
    """Show progress on standard error, which leaves standard output to the result."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        yield bar


def _take(event: dict[str, Any], answer: TrialResult, bar: Progress | None) -> None:
    kind, size = event["event"], event.get("size") or "as it is"
    if kind == "ran":
        answer.runs[size] = event["runs"]
        answer.compiles += event["compiles"]
    elif kind == "compiled":
        answer.compiles += event["compiles"]
    elif kind == "failed":
        answer.failed, answer.exit_code = event["text"], 1 if event.get("told", True) else NOT_ALL
    elif kind == "added":
        answer.added = event["text"]
    elif kind == "models":
        answer.models = event["models"]
    if bar is None:
        return
    for task in [*bar.task_ids]:
        bar.remove_task(task)
    if kind == "starting":
        bar.add_task("starting ComfyUI", total=None)
    elif kind == "running":
        bar.add_task(f"running the workflow, {size}", total=None)
    elif kind == "compiling":
        for one in event["compiles"]:
            text = f"compiling {one['component']}, {one['label']}: {one['stage']}"
            bar.add_task(text, total=1.0, completed=one["share"])


def _report(answer: TrialResult, mode: str, as_json: bool, no_run: bool = False) -> NoReturn:
    code = answer.exit_code or (0 if answer.all_compiled or no_run else NOT_ALL)
    if as_json:
        fields = {"models": answer.models, "sizes": answer.runs, "compiles": answer.compiles, "added": answer.added}
        print_json({**fields, "error": answer.failed, "exit_code": code})
        raise typer.Exit(code)
    if answer.added:
        print_line(answer.added)
    for model in answer.models:
        print_line(_model_line(model))
    for size, nodes in answer.runs.items():
        for node, reports in sorted(nodes.items()):
            for report in reports:
                print_line(f"{_verdict(report, mode)}  node {node}, {size}: {report['text']}")
                for remedy in _remedies(report, mode):
                    print_line(f"  {remedy}")
    if answer.failed:
        print_error(answer.failed)
    elif code == _INTERRUPTED:
        print_line("stopped; what was compiled stays, and the next time goes on from there")
    elif mode == "bake":
        print_line(f"{counted(answer.compiles)} compiled; a run now compiles nothing")
    raise typer.Exit(code)


def _model_line(model: dict[str, Any]) -> str:
    """What is told of a model without running anything, as one line."""
    parts = [model["family"], *model["formats"], *(f"LoRA {name}" for name in model["loras"])]
    graphs = [counted(model["graphs"], "cached graph")] if model["graphs"] else []
    facts = ", ".join(filter(None, parts)) or "family unknown"
    about = "; ".join(filter(None, [facts, *graphs, model["text"]]))
    return f"{model['verdict']}  node {model['node']} ({model['type']}) {model['file']}: {about}"


def _misses() -> frozenset[str]:
    from ..common.reasons import RemoteStore

    return _MISSES | {kind.code for kind in RemoteStore.__subclasses__()}


def _verdict(report: dict[str, Any], mode: str) -> str:
    if report["compiled_calls"] and not report["eager_codes"]:
        return "hit" if mode == "explain" else "ready"
    if mode == "explain" and _misses() & {*report["eager_codes"]}:
        return "miss"
    return "partly" if report["compiled_calls"] else "uncompiled"


def _remedies(report: dict[str, Any], mode: str) -> list[str]:
    from ..common import remedies

    codes = {*report["eager_codes"]}
    misses = _misses()
    names = [name for code in sorted(codes - misses) if (name := remedies.remedy_of_code(code)) is not None]
    sentences = [text for name in dict.fromkeys(names) if (text := remedies.sentences().get(name)) is not None]
    if mode == "explain" and codes & misses:
        sentences.append("it compiles at the next run; `onegraph bake` does so before")
    if any(code.startswith("waits_") or code == "tried_too_often" for code in codes):
        sentences.append("`onegraph retry` has it tried again at once")
    if codes & {"unsigned", "wrong_signature", "foreign_owner", "unknown_publisher", "signing_key_refused"}:
        sentences.append("see `onegraph doctor` for the key that graphs are signed with")
    if "not_saved" in codes or "waits_for_disk" in codes:
        sentences.append("see `onegraph doctor` for the disk")
    return sentences
