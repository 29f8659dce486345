"""Whoever makes the calls: ComfyUI's host, diffusers' pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ...common.reasons import Reason
from ...common.refused import Refused
from ...compiler.blocks.other_sizes import Scale
from ...compiler.code.fingerprint import Rules
from ...compiler.process.progress import Progress
from ...signature.call_rules import Attention
from ..guards.module_guard import ModuleGuard
from ..request import Request, RequestContext, WhenMissing
from .routing import MethodSlot


class Client(Protocol):
    """Whoever asks for the graphs of a component, of a whole model or of its blocks."""

    def context(self, module: torch.nn.Module) -> RequestContext:
        """Who asks for graphs of a module."""

    def with_memory(self, run: Any, request: Request, x: torch.Tensor) -> Request:
        """The request with what is known of memory, for a graph that may have to be compiled."""
        return request

    def follow(self, label: str) -> Callable[[Progress], None]:
        """What follows a compile that the user waits for; it may raise the user's interrupt."""


class BlockClient(Protocol):
    """What a run of blocks needs to know besides: of their calls, weights and options.

    Attributes:
        component: that asks for the graphs.
        model: whose blocks they are.
        packages: whose objects blocks' arguments are taken apart by.
        backend: its name, or `auto`.
        entries: the model's methods that call its blocks, and the scale of further calls of them.
    """

    packages: tuple[str, ...]
    entries: Mapping[str, Scale]
    backend: str
    when_missing: WhenMissing

    @property
    def component(self) -> Client: ...

    @property
    def model(self) -> torch.nn.Module: ...

    def rules(self) -> Rules:
        """How the model's modules are to be read."""

    def refusal(self, run: Any) -> Reason | None:
        """Why no block of the model can be served by a graph now, or None."""

    def skeleton(self, run: Any, name: str, block: torch.nn.Module, guard: ModuleGuard) -> torch.nn.Module | Refused:
        """One of the blocks as graphs are compiled for it, with the weights that they read.

        The block itself, or another module that computes the same: the same one as long as nothing changes. Or why no
        graph serves the block now.
        """

    def slots(self, block: torch.nn.Module) -> Sequence[MethodSlot]:
        """Where the methods by which a model may call a block are looked up, behind whatever brings its weights."""

    def before_call(self, run: Any, block: torch.nn.Module) -> None:
        """Told of each call of a block that a graph is about to serve: what it reads besides weights may be stale."""

    def requested(self, request: Request) -> None:
        """Told of each graph that is asked for."""

    def call_refusal(self) -> Reason | None:
        """Why no graph may run just now, or None. Asked at each call of a block."""

    def attention(self, options: Any) -> Attention:
        """How a call with these options attends: as graphs that have torch's attention in them, or by a function of the
        user's choice, which a graph calls. Asked at each call of a block."""

    def compared(self, options: Any) -> Any:
        """The options with torch's attention in them, for comparisons of a graph that calls functions with eager: these
        functions are called for the result alone, as often as eager would."""
