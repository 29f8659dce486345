"""PyTorch AOTInductor graphs.

In the order in which a compile uses them:

* `settings`: Inductor's options, and what of Inductor is changed while it compiles.
* `repeats`: capturing traces blocks that are equal only twice.
* `partition`: the graph is cut into regions, each type of which compiles once (`repetition`, `graph_body`, `plan`).
* `sharing`, `transfer`: other processes get regions to compile.
* `packages`, `toolchain`: a region becomes a file.
* `runner`: the files become a graph that runs.
* `absent_gpu`, `explicit_attention`, `machine_code`: compiles for GPUs that are not here, and what their files tell.

Facts that this package rests on, each covered by a test:

* A 1-D constant of up to eight elements is written into the code by value unless `always_keep_tensor_constants`
  is set: every other checkpoint would run with the first one's bias.
* `aoti_load_package` probes the CPU's vector ISA by compiling test programs (up to 60 s in a fresh process); the
  loader class does not, but skips the package's target check, so the target is part of our key instead.
* Neither inputs nor constants are checked, and constants are bare addresses: see `ShapeRange.refusal` and
  `runtime.graphs.binding`.
"""

from __future__ import annotations

from .backend import InductorBackend
from .packages import GRAPH_FILE, PLAN_FILE
from .runner import InductorRunner

__all__ = ["GRAPH_FILE", "PLAN_FILE", "InductorBackend", "InductorRunner"]
