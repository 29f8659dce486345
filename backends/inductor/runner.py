"""A loaded graph: AOTInductor packages, run one after the other, whose weights live elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...common.errors import BindError, LoadError, in_brief
from ...common.outputs import Output, output_of
from ...common.torch_private import require
from ...graph_cache.crash import leftovers
from ..cuda_graphs import CudaGraphs
from .container import Container, Library, Loaded, Packaged
from .packages import GRAPH_FILE, PLAN_FILE, region_file
from .plan import RegionPlan


@dataclass(frozen=True)
class BoundRegion:
    """One region of a graph, loaded by itself because what is loaded knows one set of weights.

    Attributes:
        loaded: the region's code.
        weights: the region's name of each -> the graph's.
        inputs: numbers of the values that it takes.
        outputs: numbers of the values that it gives.
        freed: numbers of the values that nothing needs afterwards.
        aliases: what it was given, by its own names.
    """

    loaded: Loaded
    weights: Mapping[str, str]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    freed: tuple[int, ...]
    aliases: dict[str, torch.Tensor] = field(default_factory=dict)


class InductorRunner:
    """Regions in order, as one function. Not thread-safe.

    Attributes:
        source: keeps the files that it reads later.

    Args:
        results: numbers of the values that are returned; None: the graph is one region, and all that it gives is.
    """

    reads_in_place = True

    def __init__(self, regions: Sequence[BoundRegion], results: tuple[int, ...] | None) -> None:
        self._regions = tuple(regions)
        self._results = results
        self._names = [*dict.fromkeys(name for region in regions for name in region.weights.values())]
        self._bound: dict[str, int] | None = None  # addresses by name
        self.cuda_graphs = CudaGraphs(self._run)
        self.source: Any = None

    @property
    def held_bytes(self) -> int:
        """Bytes that its CUDA graphs hold. Other activations are shared and freed as in eager."""
        return self.cuda_graphs.held_bytes

    def constant_names(self) -> list[str]:
        return self._names

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        missing = [n for n in self._names if n not in tensors]
        if missing:
            raise BindError(
                f"The model lacks the weight {missing[0]} that the graph reads; it runs uncompiled instead."
            )
        addresses = {name: tensors[name].data_ptr() for name in self._names}
        if addresses == self._bound:
            return  # the graph knows nothing else of its weights, and CUDA graphs of it stay right
        before, self._bound = self._bound or {}, None
        self.cuda_graphs.clear()
        for region in self._regions:
            aliases = region.aliases
            moved = {s: n for s, n in region.weights.items() if s not in aliases or before.get(n) != addresses[n]}
            _point(aliases, {short: tensors[name] for short, name in moved.items()})
            region.loaded.bind({short: aliases[short] for short in moved})  # the same aliases each time
        self._bound = addresses

    def __call__(self, *inputs: torch.Tensor) -> Output:
        return self.cuda_graphs(*inputs)

    def _run(self, *inputs: torch.Tensor) -> Output:
        if self._results is None:
            return _own(self._regions[0].loaded([*inputs]), inputs)
        values = dict(enumerate(inputs))
        for region in self._regions:
            region_inputs = [values[number] for number in region.inputs]
            for number in region.freed:
                values.pop(number, None)  # the last reference is then the list's, which the region empties
            values.update(zip(region.outputs, region.loaded(region_inputs), strict=True))
        return _own([values[number] for number in self._results], inputs)

    def close(self) -> None:
        self.cuda_graphs.clear()
        self._bound = None


def _own(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Output:
    """The results, each in memory of its own: a model may return a tensor twice, or an input as it is."""
    if len(results) == 1:
        return results[0]
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    separate: list[torch.Tensor] = []
    for result in results:
        memory = result.untyped_storage().data_ptr()
        separate.append(result.clone() if memory in taken else result)
        taken.add(memory)
    return output_of(separate)


def _point(aliases: dict[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Have the aliases of these names, made at first, show the tensors' memory without owning it.

    What is loaded keeps every tensor that it was ever given, so a weight itself would outlive its model.
    """
    storage = require("torch._C._construct_storage_from_data_pointer")
    with torch.inference_mode(False), torch.no_grad():  # once for all: a UNet has 1,700 weights
        for name, tensor in tensors.items():
            if name not in aliases:
                aliases[name] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
            extent = last + 1 if tensor.numel() else 0
            memory = storage(tensor.data_ptr(), tensor.device, extent * tensor.element_size())
            aliases[name].set_(memory, 0, tensor.shape, tensor.stride())


class _Files:
    """The unpacked archives of one graph, in a folder of this process that is swept if the process dies.

    torch's loader would unpack them itself, into folders that stay when the process is killed. Older versions of torch
    take no folder and still do so.

    Args:
        again: whether they are loaded again when `folder` is gone.
    """

    def __init__(self, folder: Path, device: torch.device, again: bool = False) -> None:
        self._packages = folder
        self._again = again
        self._device = device
        self._index = device.index if device.type == "cuda" and device.index is not None else -1
        # A library that is in use needs no file on POSIX systems; the kernels of a GPU are read at their first calls.
        self._read_later = device.type == "cuda" or os.name != "posix"
        self._held = contextlib.ExitStack()
        self._folder: Path | None = None
        self._unpacked: dict[str, Path] = {}
        self._libraries: dict[str, Library | None] = {}  # one for all of a region: 0.1 ms instead of 4 for each

    def loaded(self, file: str) -> Loaded:
        """Load a file once more. Raises LoadError, OSError or RuntimeError."""
        package = self._packages / file
        if file not in self._unpacked:
            self._unpacked[file] = self._unpack(package)
            self._libraries[file] = Library.of(self._unpacked[file])
        library = self._libraries[file]
        if library is not None:
            return Container(library, self._device)
        try:
            return self._packaged(self._unpacked[file])
        except RuntimeError:
            return self._packaged(self._kept(package) if self._again else package)

    def _kept(self, package: Path) -> Path:
        """A copy of an archive that stays."""
        assert self._folder is not None
        kept = self._folder / package.name
        if not kept.exists():
            shutil.copyfile(package, kept)
        return kept

    def _unpack(self, package: Path) -> Path:
        if self._folder is None:
            self._folder = self._held.enter_context(leftovers.owned_folder(None))
        unpacked = self._folder / package.stem
        with zipfile.ZipFile(package) as archive:
            archive.extractall(unpacked)
        return unpacked

    def _packaged(self, path: Path) -> Packaged:
        return Packaged(path, self._index)

    def keep_for(self, runner: InductorRunner) -> None:
        """Keep the files as long as the runner lives, where it still reads them."""
        if self._read_later:
            weakref.finalize(runner, self.remove)
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the unpacked files."""
        self._held.close()


def load(folder: Path, device: torch.device) -> InductorRunner:
    """Load the graph in a folder.

    Raises:
        LoadError: a file is missing or damaged, or this torch cannot load it.
    """
    files = _Files(folder, device)
    try:
        with _as_load_error():
            runner = _loaded(_read_plan(folder), files)
    except LoadError:
        files.remove()
        raise
    files.keep_for(runner)
    return runner


class Loader:
    """Loads a graph as often as it is called. Its files stay as long as it lives, or a runner of it.

    Args:
        folder: with the graph's files, which may go once the first runner is loaded.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        with _as_load_error():
            self._plan = _read_plan(folder)
            self._files = _Files(folder, device, again=True)
        weakref.finalize(self, self._files.remove)

    def __call__(self) -> InductorRunner:
        """Load it once more: a runner of the same code, with weights of its own. Raises LoadError."""
        with _as_load_error():
            runner = _loaded(self._plan, self._files)
        runner.source = self
        return runner


@contextlib.contextmanager
def _as_load_error() -> Iterator[None]:
    try:
        yield
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(
            f"The compiled graph could not be loaded ({in_brief(error)}); it runs uncompiled instead."
        ) from error


def _read_plan(folder: Path) -> RegionPlan | None:
    if not (folder / PLAN_FILE).exists():
        return None
    return RegionPlan.from_json(json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")))


def _loaded(plan: RegionPlan | None, files: _Files) -> InductorRunner:
    if plan is None:
        whole = files.loaded(GRAPH_FILE)
        names = {name: name for name in whole.constant_names()}
        return InductorRunner([BoundRegion(whole, names, (), (), ())], None)
    regions = []
    for step, freed in zip(plan.steps, plan.last_uses(), strict=True):
        region = files.loaded(region_file(step.region_type))
        shorts = [f"w{number}" for number in range(len(step.weights))]
        if set(region.constant_names()) != set(shorts):
            raise LoadError("The compiled graph's regions do not read the weights of its plan; it runs uncompiled.")
        weights = dict(zip(shorts, step.weights, strict=True))
        regions.append(BoundRegion(region, weights, step.inputs, step.outputs, freed))
    return InductorRunner(regions, plan.results)
