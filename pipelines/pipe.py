"""compile_pipe: which modules are compiled, and the handle that tells of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..backends import get, known
from ..common import reasons
from ..common.errors import BackendError, NoPipelineError, PipelineError
from ..common.reasons import Reason
from ..common.torch_private import is_compiled_by_torch, unwrapped
from ..runtime.family import Shapes
from ..runtime.request import WhenMissing
from .blocks import BlockComponent
from .component import PipeComponent, PipelineOptions
from .families import PipeFamily, family_of
from .families.blocks import Blocks
from .interception import interception_of
from .report import ComponentReport, PipeReport

HANDLE = "onegraph"  # the attribute of a pipeline
_HALVES = ("decoder", "encoder")
_SEVERAL = "MultiControlNetModel"  # how diffusers' classes end that call each of their ControlNets


def modules_of(owner: Any) -> dict[str, torch.nn.Module]:
    """The modules that calls may be taken of, by dotted name.

    Args:
        owner: a pipeline, whose components count, of a VAE its halves, of several ControlNets each; or a module.
    """
    if isinstance(owner, torch.nn.Module):
        return _parts(owner, "")
    check_type(owner)
    modules: dict[str, torch.nn.Module] = {}
    for name, part in owner.components.items():
        if isinstance(part, torch.nn.Module):
            modules |= _parts(part, name)
    return modules


def _parts(module: torch.nn.Module, name: str) -> dict[str, torch.nn.Module]:
    plain = unwrapped(module)
    family = family_of(plain)
    if family is not None:
        return {name or _name_of(plain, family): module}
    children: dict[str, Any] = {half: getattr(plain, half, None) for half in _HALVES}
    if type(plain).__name__.endswith(_SEVERAL):
        children = {f"nets.{number}": net for number, net in enumerate(plain.nets)}  # type: ignore[arg-type]
    parts = {f"{name}.{part}" if name else part: m for part, m in children.items() if isinstance(m, torch.nn.Module)}
    compiled = any(family_of(part) is not None for part in parts.values())
    return parts if compiled else {name or type(plain).__name__: module}


def _name_of(module: torch.nn.Module, family: PipeFamily) -> str:
    """The name of a module that no pipeline names."""
    return type(module).__name__ if isinstance(family, Blocks) else family.component


class Handle:
    """What `pipe.onegraph` is.

    Attributes:
        components: those that are compiled, by dotted name.
        eager: why the others are not.
        saved: why the graphs that were saved for a component do not fit here.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)
        self.components: dict[str, PipeComponent] = {}
        self.eager: dict[str, Reason] = {}
        self.saved: dict[str, Reason] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        """A copy of a pipeline or module is not compiled."""
        owner = self._owner()
        return Handle(memo.get(id(owner), owner))

    def __reduce__(self) -> Any:
        return Handle, (self._owner(),)

    def report(self) -> PipeReport:
        """What ran compiled since the pipeline was compiled, what did not and why."""
        owner = self._owner()
        if owner is None:
            return PipeReport(tuple(ComponentReport.of(name, one.report, ()) for name, one in self.components.items()))
        live = modules_of(owner)
        names = [*self.components, *self.eager]
        names += [name for name, module in live.items() if name not in names and _serving(module) is not None]
        return PipeReport(tuple(self._report(name, live.get(name)) for name in names))

    def _report(self, name: str, module: torch.nn.Module | None) -> ComponentReport:
        """What became of the calls of one component.

        Args:
            module: that the pipeline has under this name now.
        """
        component, serving = self.components.get(name), _serving(module)
        if component is None:
            left_out = self.eager.get(name)
            if serving is None:
                return ComponentReport(name, eager={} if left_out is None else {left_out: 0})
            return ComponentReport.of(name, serving.report, () if left_out is None else [reasons.SharedCompiled()])
        plain = None if module is None else unwrapped(module)
        if serving is not component and (plain is None or plain is not component.interception.module()):
            return ComponentReport.of(name, (serving or component).report, () if serving else [reasons.OtherModule()])
        return ComponentReport.of(name, component.report, self._standing(name, component, module))

    def _standing(self, name: str, component: PipeComponent, module: torch.nn.Module | None) -> Iterator[Reason]:
        """Why a component runs eager whatever is called."""
        if name in self.saved:
            yield self.saved[name]
        if module is not None and is_compiled_by_torch(module):
            yield reasons.TorchCompiled()
        bypassed = component.interception.bypassed()
        if bypassed is not None:
            yield bypassed

    def remove(self) -> None:
        """Have all modules run as they did before; those that another compiled pipeline has, too, stay as they are."""
        for name in [*self.components]:
            self.release(name)
            self.eager[name] = reasons.Removed()

    def release(self, name: str) -> None:
        """Have one component run as it did before."""
        component = self.components.pop(name, None)
        owner = self._owner()
        if component is not None and owner is not None:
            component.release(owner)


def _serving(module: torch.nn.Module | None) -> PipeComponent | None:
    """The component that takes a module's calls, whoever compiled it."""
    component = None if module is None else _component_of(module)
    return component if component is not None and component.interception.active else None


def _component_of(module: torch.nn.Module) -> PipeComponent | None:
    """The component that takes a module's calls, or did before it was removed below somebody else's wrapper."""
    family = family_of(unwrapped(module))
    interception = None if family is None else interception_of(unwrapped(module), family.method)
    component = None if interception is None else getattr(interception.serve, "__self__", None)
    return component if isinstance(component, PipeComponent) else None


def check_type(owner: Any) -> None:
    """Refuse what is no pipeline and no module.

    Raises:
        NoPipelineError: that is so.
    """
    if not isinstance(owner, torch.nn.Module) and not isinstance(getattr(owner, "components", None), Mapping):
        raise NoPipelineError(
            f"{owner!r:.80} is no diffusers pipeline and no module. Pass the object that `from_pretrained` returns."
        )


def handle_of(owner: Any) -> Handle | None:
    """The handle of a pipeline or module that was compiled. Raises NoPipelineError."""
    check_type(owner)
    handle = vars(owner).get(HANDLE)
    return handle if isinstance(handle, Handle) else None


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
        backend: `auto`, `inductor`, `oneflow`, or the name of one that another package offers.
        ignores: components to leave out by dotted name, e.g. `vae` or `vae.encoder`; a string is one name.
        shapes: `any size` for one graph for all sizes, `exact` for one for each.
        when_missing: what to do where there is no graph: compile it now (`wait`), compile it while the pipeline runs
            eager (`background`), or never compile (`eager`).

    Returns:
        The same pipeline, with the attribute `onegraph`.

    Raises:
        NoPipelineError: it is no pipeline.
        PipelineError: a name in `ignores` is none of the pipeline's components, or another argument is no choice.

    Example:
        >>> pipe = compile_pipe(StableDiffusionXLPipeline.from_pretrained(folder))
        >>> image = pipe("a lighthouse").images[0]
    """
    take_calls(pipe, PipelineOptions(backend, shapes, when_missing), ignores)
    return pipe


def leave_out(owner: Any, reason: Reason) -> None:
    """Have all modules of an owner run as they do, with a handle whose report says why."""
    handle = handle_of(owner) or Handle(owner)
    handle.remove()
    handle.eager = dict.fromkeys(modules_of(owner), reason)
    vars(owner)[HANDLE] = handle


def attach(pipe: Any) -> Handle:
    """Take the calls of a pipeline's modules, for graphs that are there already. Modules that are compiled stay so."""
    return take_calls(pipe, PipelineOptions(when_missing="eager"), (), _as_they_are)


# What is done with a component of a module that is compiled already.
Reconfigure = Callable[[PipeComponent, PipelineOptions], None]


def _as_they_are(component: PipeComponent, options: PipelineOptions) -> None:
    """Leave it."""


def take_calls(
    owner: Any,
    options: PipelineOptions,
    ignores: str | Sequence[str],
    reconfigure: Reconfigure = PipeComponent.set_options,
) -> Handle:
    """Take the calls of all modules of an owner that are not to be ignored."""
    _check_choices(options)
    modules = modules_of(owner)
    left_out = _left_out(ignores, modules)
    handle = handle_of(owner) or Handle(owner)
    for name in [*handle.eager, *handle.components]:
        if name not in modules:  # the owner has another module now
            handle.release(name)
            handle.eager.pop(name, None)
    for name, module in modules.items():
        family = family_of(unwrapped(module))
        before = handle.components.get(name)
        if before is not None and (name in left_out or before.interception.module() is not unwrapped(module)):
            handle.release(name)
        if name in left_out:
            handle.eager[name] = reasons.Ignored()
        elif family is None:
            handle.eager[name] = reasons.NotCompilable(type(module).__name__)
        else:
            handle.eager.pop(name, None)
            component = handle.components[name] = _attach(name, unwrapped(module), family, options, reconfigure)
            component.owners.add(owner)
    vars(owner)[HANDLE] = handle
    return handle


def _check_choices(options: PipelineOptions) -> None:
    choices = {
        "backend": ("auto", *known()),
        "shapes": ("any size", "exact"),
        "when_missing": ("wait", "background", "eager"),
    }
    for name, allowed in choices.items():
        choice = getattr(options, name)
        if choice not in allowed and not (name == "backend" and _is_offered(choice)):
            raise PipelineError(f"{name} is {choice!r}; choose one of {', '.join(allowed)}.")


def _is_offered(backend: str) -> bool:
    """Whether another package offers a backend. Raises PipelineError where it cannot be loaded."""
    try:
        return get(backend).name == backend  # by which compiling processes look for it
    except BackendError as error:
        raise PipelineError(str(error)) from error
    except (KeyError, TypeError):  # nobody's name, or no name
        return False


def _attach(
    name: str, module: torch.nn.Module, family: PipeFamily, options: PipelineOptions, reconfigure: Reconfigure
) -> PipeComponent:
    """Take the calls of a module, unless they are taken already."""
    component = _component_of(module)
    if component is None:
        made = BlockComponent if isinstance(family, Blocks) else PipeComponent
        component = made(name, module, family, options)
    elif component.owners:
        reconfigure(component, options)
    else:
        component.set_options(options)
    component.interception.install()
    return component


def _left_out(ignores: str | Sequence[str], modules: dict[str, torch.nn.Module]) -> set[str]:
    """The dotted names that `ignores` leaves out: a component's own and those below it."""
    names = [ignores] if isinstance(ignores, str) else [*ignores]
    left_out: set[str] = set()
    for name in names:
        matching = {one for one in modules if one == name or one.startswith(f"{name}.")}
        if not matching:
            listed = ", ".join(sorted({*modules, *(one.partition(".")[0] for one in modules)}))
            raise PipelineError(f"The pipeline has no component {name!r} to ignore; it has {listed}.")
        left_out |= matching
    return left_out
