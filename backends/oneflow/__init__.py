"""OneFlow graphs: a second way to compile, which needs neither a C++ compiler nor Triton, only OneFlow 0.9.0 itself.

A captured module becomes a list of ATen operations in JSON (`program`), which is lowered at exact sizes (`lowering`) to
a OneFlow job (`graph`). Both are stored. A later process loads the job (`runtime`, `runner`) without capturing or
lowering again, and lowers the program for other sizes without the model's code. Weights are shared with torch.
"""

from __future__ import annotations

from .backend import OneFlowBackend
from .graph import Counters, counters
from .runner import OneFlowRunner

__all__ = ["Counters", "OneFlowBackend", "OneFlowRunner", "counters"]
