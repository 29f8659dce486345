"""compile_pipe: the modules of a pipeline, which of them are compiled, and the handle that tells of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ..backends import known
from ..common import reasons
from ..common.errors import PipelineError
from ..common.reasons import Reason
from ..runtime.request import WhenMissing
from .component import Component, Options
from .families import FAMILIES, Family, Shapes, family_of
from .interception import interception_of
from .report import ComponentReport, PipeReport

HANDLE = "onegraph"  # the attribute of a pipeline
_HALVES = ("decoder", "encoder")


def modules_of(pipe: Any) -> dict[str, torch.nn.Module]:
    """A pipeline's modules by dotted name: its components, and the halves of a VAE instead of the VAE."""
    found: dict[str, torch.nn.Module] = {}
    for name, part in pipe.components.items():
        if not isinstance(part, torch.nn.Module):
            continue
        plain = getattr(part, "_orig_mod", part)  # of torch.compile
        halves = {half: getattr(plain, half, None) for half in _HALVES}
        if family_of(plain) is None and any(isinstance(h, torch.nn.Module) and family_of(h) for h in halves.values()):
            found |= {f"{name}.{half}": h for half, h in halves.items() if isinstance(h, torch.nn.Module)}
        else:
            found[name] = part
    return found


class Handle:
    """What `pipe.onegraph` is.

    Attributes:
        components: those that are compiled, by dotted name.
        eager: why the others are not.
    """

    def __init__(self, pipe: Any) -> None:
        self._pipe = weakref.ref(pipe)
        self.components: dict[str, Component] = {}
        self.eager: dict[str, Reason] = {}

    def report(self) -> PipeReport:
        """What ran compiled since the pipeline was compiled, what did not and why."""
        pipe = self._pipe()
        live = {} if pipe is None else modules_of(pipe)
        parts = [
            ComponentReport.of(name, component.report, _compiled_by_torch(live.get(name)))
            for name, component in self.components.items()
        ]
        parts += [ComponentReport(name, eager={reason: 0}) for name, reason in self.eager.items()]
        return PipeReport(tuple(parts))

    def remove(self) -> None:
        """Have the pipeline's modules run as they did before `compile_pipe`."""
        for component in self.components.values():
            component.interception.remove()
        self.components.clear()


def _compiled_by_torch(module: torch.nn.Module | None) -> bool:
    return module is not None and (
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
    )


def handle_of(pipe: Any) -> Handle | None:
    """The handle of a pipeline that was compiled."""
    found = vars(pipe).get(HANDLE)
    return found if isinstance(found, Handle) else None


def compile_pipe(
    pipe: Any,
    *,
    backend: str = "auto",
    ignores: str | Sequence[str] = (),
    shapes: Shapes = "any size",
    when_missing: WhenMissing = "wait",
) -> Any:
    """Run a diffusers pipeline through graphs that are compiled ahead of time. Cheap: compiles nothing yet.

    A graph is restored from the store at the first call of its component, or compiled there. Calls that no graph
    serves run as they did before; `pipe.onegraph.report()` tells which and why.

    Args:
        pipe: any diffusers pipeline. Its modules' calls are taken on these instances; no class is changed.
        backend: `auto`, `inductor` or `oneflow`.
        ignores: components to leave out by dotted name, e.g. `vae` or `vae.encoder`; a string is one name.
        shapes: `any size` for one graph for all sizes, `exact` for one for each.
        when_missing: what to do where there is no graph: compile it now (`wait`), compile it while the pipeline runs
            eager (`background`), or never compile (`eager`).

    Returns:
        The same pipeline, with the attribute `onegraph`.

    Raises:
        PipelineError: a name in `ignores` is none of the pipeline's components, or another argument is no choice.

    Example:
        >>> pipe = compile_pipe(StableDiffusionXLPipeline.from_pretrained(folder))
        >>> image = pipe("a lighthouse").images[0]
    """
    check_choices(backend, shapes, when_missing)
    options = Options(backend, shapes, when_missing)
    found = modules_of(pipe)
    left_out = _left_out(ignores, found)
    handle = handle_of(pipe) or Handle(pipe)
    for name, module in found.items():
        family = family_of(getattr(module, "_orig_mod", module))
        if name in left_out:
            _release(handle, name)
            handle.eager[name] = reasons.Ignored()
        elif family is None:
            handle.eager[name] = reasons.NotCompilable(type(module).__name__)
        else:
            handle.eager.pop(name, None)
            handle.components[name] = attach(name, getattr(module, "_orig_mod", module), family, options)
            handle.components[name].pipes.add(pipe)
    setattr(pipe, HANDLE, handle)
    return pipe


def check_choices(backend: str, shapes: str, when_missing: str) -> None:
    """Raise PipelineError for an argument that is no choice."""
    choices = {"backend": ("auto", *known()), "shapes": ("any size", "exact")}
    choices["when_missing"] = ("wait", "background", "eager")
    given = {"backend": backend, "shapes": shapes, "when_missing": when_missing}
    for name, allowed in choices.items():
        if given[name] not in allowed:
            raise PipelineError(f"{name} is {given[name]!r}; choose one of {', '.join(allowed)}.")


def attach(name: str, module: torch.nn.Module, family: Family, options: Options) -> Component:
    """Take the calls of a module; where they are taken already, the later choices count."""
    known_one = interception_of(module, family.method)
    component = getattr(known_one.serve, "__self__", None) if known_one is not None else None
    if isinstance(component, Component):
        component.set_options(options)
        return component
    component = Component(name, module, family, options)
    component.interception.install()
    return component


def _release(handle: Handle, name: str) -> None:
    component = handle.components.pop(name, None)
    if component is not None:
        component.interception.remove()


def _left_out(ignores: str | Sequence[str], found: dict[str, torch.nn.Module]) -> set[str]:
    """The dotted names that `ignores` leaves out: a component's own and those below it."""
    names = [ignores] if isinstance(ignores, str) else [*ignores]
    left_out: set[str] = set()
    for name in names:
        matching = {one for one in found if one == name or one.startswith(f"{name}.")}
        if not matching:
            listed = ", ".join(sorted({*found, *(one.partition(".")[0] for one in found)}))
            raise PipelineError(f"The pipeline has no component {name!r} to ignore; it has {listed}.")
        left_out |= matching
    return left_out


def compilable() -> Iterator[str]:
    """The names of what is compiled, as in keys."""
    yield from (family.component for family in FAMILIES)


def folders_of(components: Sequence[Component]) -> tuple[Path, ...]:
    """The folders of saved graphs that components look into."""
    return tuple(dict.fromkeys(folder for component in components for folder in component.options.folders))
