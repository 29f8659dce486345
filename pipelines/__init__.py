"""Graphs for diffusers pipelines: `compile_pipe`, `save_pipe`, `load_pipe`.

The second client of the pack's runtime beside ComfyUI: the same graphs, the same store, the same checks. It needs
diffusers (`pip install "onegraph[diffusers]"`) and no ComfyUI.
"""

from __future__ import annotations

from ..common.errors import PipelineError
from .module import compile_module
from .pipe import compile_pipe
from .report import ComponentReport, PipeReport
from .saving import load_pipe, save_pipe

__all__ = ["ComponentReport", "PipeReport", "PipelineError", "compile_module", "compile_pipe", "load_pipe", "save_pipe"]
