"""Plans of `onegraph bake PLAN.toml`: which graphs a fleet needs, made where, and put into which store."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from blake3 import blake3
from pydantic import Field, ValidationError, model_validator

from ..common.strict import Strict

CAPABILITIES = {  # of NVIDIA's accelerators, by the names that Ray gives them
    "V100": "7.0", "T4": "7.5", "A100": "8.0", "A100-40G": "8.0", "A100-80G": "8.0", "A10G": "8.6", "L4": "8.9",
    "L40S": "8.9", "H100": "9.0", "H200": "9.0", "H20": "9.0", "B200": "10.0",
}  # fmt: skip
CALL = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"  # module:function
SIZE = r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}$"


class PlanError(ValueError):
    """A plan cannot be used; the text says why."""


class Target(Strict):
    """A kind of machine.

    Attributes:
        accelerator: the type of GPU as Ray names it, e.g. `H100`; empty: any, or none.
        gpus, cpus, memory_gb: that one bake takes.
        expect: what a field of its graphs' keys may be, such as `{ machine = ["aarch64"] }`, where that differs from
            the machine that runs the command.
    """

    name: str = ""
    accelerator: str = ""
    gpus: float = Field(default=0, ge=0)
    cpus: float = Field(default=2, gt=0)
    memory_gb: float = Field(default=0, ge=0)
    resources: dict[str, float] = {}
    expect: dict[str, list[str]] = {}


class Absent(Strict):
    """The GPUs that models are baked for, which no machine of the plan has.

    Attributes:
        architectures: such as `sm_86`.
        platforms: `linux`, `windows`.
    """

    architectures: list[str] = Field(min_length=1)
    platforms: list[str] = ["linux"]


class Bake(Strict):
    """What is run so that its graphs are compiled; or a model of which the header is read, for `[absent]` GPUs.

    Attributes:
        model: a file, by its path beside the plan; or by an address, `hf://OWNER/NAME/FILE` or one of http, of which
            the header is fetched unless such a file is beside the plan.
        name: of the model, for people.
        dtype: in which most of the model is, as safetensors names it; empty: any.
        sha256: of what is read of it, as the first bake prints it; empty: any.
        workflow: in ComfyUI's API format, a path beside the plan; it is sent along.
        call: a function of a module that the machines have, as `module:function`, which is given one of `arguments`.
        sizes: width x height for the workflow's empty latents, one bake for each.
        models: file names for the workflow's loaders, one bake for each: `ckpt_name` or `unet_name` of every loader.
        dtypes: `weight_dtype` of the workflow's loaders, one bake for each.
        targets: by name; all without any.
        options: of the ComfyUI that is started.
        expect: what a field of the graphs' keys may be, such as `{ component = ["unet"], dtype = ["float16"] }`.
    """

    model: str = ""
    name: str = ""
    dtype: str = ""
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    workflow: str = ""
    call: str = ""
    arguments: list[dict[str, Any]] = []
    sizes: list[str] = []
    models: list[str] = []
    dtypes: list[str] = []
    targets: list[str] = []
    options: list[str] = []
    expect: dict[str, list[str]] = {}

    @model_validator(mode="after")
    def _has_one(self) -> Bake:
        if [bool(self.workflow), bool(self.call), bool(self.model)].count(True) != 1:
            raise ValueError("a [[bake]] has either a workflow, a call or a model")
        if self.call and re.fullmatch(CALL, self.call) is None:
            raise ValueError(f"{self.call!a} is no call; write it like package.module:function")
        wrong = next((size for size in self.sizes if not re.match(SIZE, size)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} is not a size; write it like 1024x1024")
        return self


class Plan(Strict):
    """A plan, as in its file: of what a fleet runs, or of models for absent GPUs."""

    store: str = ""
    publisher: str = ""
    retries: int = Field(default=3, ge=0)
    target: list[Target] = [Target()]
    absent: Absent | None = None
    bake: list[Bake] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Plan:
        models = [bool(bake.model) for bake in self.bake]
        if any(models) != (self.absent is not None) or any(models) != all(models):
            raise ValueError("models are in a plan of their own, which has [absent]")
        if self.absent is None and not self.store:
            raise ValueError("it names no store")
        return self


class Item(Strict):
    """One task of a plan.

    Attributes:
        text: for people.
        prompt: the workflow, with the model and dtype put in.
    """

    text: str
    target: Target
    prompt: dict[str, Any] | None = None
    size: str = ""
    options: tuple[str, ...] = ()
    call: str = ""
    argument: dict[str, Any] = {}
    expect: dict[str, list[str]] = {}

    def expected(self) -> dict[str, list[str]]:
        """Return what fields of its graphs' keys may be, as far as the plan tells."""
        cpu = not self.target.gpus or any(option.startswith("--cpu") for option in self.options)
        fields = {"device": [*(["cuda"] if self.target.gpus else []), *(["cpu"] if cpu else [])]}
        if self.target.accelerator in CAPABILITIES:
            fields["capability"] = [CAPABILITIES[self.target.accelerator]]
        return fields | self.target.expect | self.expect

    def digest(self, versions: str) -> str:
        """Name it: what it runs, where, and by which versions."""
        fields = self.model_dump(exclude={"text"})
        digest: str = blake3(json.dumps([fields, versions], sort_keys=True).encode()).hexdigest()
        return digest


def read(path: Path) -> Plan:
    """Read a plan. Raises PlanError, OSError."""
    try:
        toml = importlib.import_module("tomllib")
    except ImportError:
        try:
            toml = importlib.import_module("tomli")
        except ImportError as error:
            raise PlanError("Plans need the package tomli here: pip install tomli.") from error
    try:
        return Plan.model_validate(toml.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PlanError(f"{path.name} is no plan: {where}: {first['msg']}.") from error
    except ValueError as error:
        raise PlanError(f"{path.name} is no TOML: {error}.") from error


def items(plan: Plan, folder: Path) -> list[Item]:
    """List the tasks of a plan, in its order.

    Args:
        folder: where its workflows are.

    Raises:
        PlanError: a workflow is none, or a target has no such name.
        OSError: a workflow cannot be read.
    """
    targets = {target.name: target for target in plan.target}
    tasks: list[Item] = []
    for bake in plan.bake:
        unknown = next((name for name in bake.targets if name not in targets), None)
        if unknown is not None:
            raise PlanError(f"No [[target]] has the name {unknown}.")
        for target in [targets[name] for name in bake.targets] or plan.target:
            tasks += _calls(bake, target) if bake.call else _workflows(bake, target, folder)
    return tasks


def _calls(bake: Bake, target: Target) -> list[Item]:
    arguments = bake.arguments or [{}]
    return [
        Item(text=" ".join([bake.call, *(f"{k}={v}" for k, v in argument.items())]), target=target, call=bake.call,
             argument=argument, expect=bake.expect)
        for argument in arguments
    ]  # fmt: skip


def _workflows(bake: Bake, target: Target, folder: Path) -> list[Item]:
    try:
        prompt = json.loads((folder / bake.workflow).read_text(encoding="utf-8"))
    except ValueError as error:
        raise PlanError(f"{bake.workflow} is no JSON: {error}.") from error
    if not isinstance(prompt, dict) or not all(isinstance(node, dict) for node in prompt.values()):
        raise PlanError(f"{bake.workflow} is no workflow in ComfyUI's API format.")
    tasks = []
    for model in bake.models or [""]:
        for dtype in bake.dtypes or [""]:
            changed = _changed(prompt, model, dtype)
            for size in bake.sizes or [""]:
                text = " ".join(filter(None, (bake.workflow, model, dtype, size, target.name)))
                tasks.append(Item(text=text, target=target, prompt=changed, size=size, options=tuple(bake.options),
                                  expect=bake.expect))  # fmt: skip
    return tasks


def _changed(prompt: dict[str, Any], model: str, dtype: str) -> dict[str, Any]:
    """Put another model and dtype into a workflow's loaders."""
    changed: dict[str, Any] = json.loads(json.dumps(prompt))
    for node in changed.values():
        inputs = node.get("inputs", {})
        for name in ("ckpt_name", "unet_name"):
            if model and isinstance(inputs.get(name), str):
                inputs[name] = model
        if dtype and isinstance(inputs.get("weight_dtype"), str):
            inputs["weight_dtype"] = dtype
    return changed
