"""A graph for any machine of this kind, made or run by one version of torch: `python -m support.models.travelling`."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import torch

import onegraph.backends.inductor  # noqa: F401 - registers the backend
from onegraph.backends.worker_pool import WorkerPool
from onegraph.common.torch_private import version
from onegraph.compiler.process import compile_job
from onegraph.compiler.process.job import Compiled
from onegraph.graph_cache.lookup import Hit
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store
from onegraph.runtime.guards import code_guard
from onegraph.runtime.obtain.compiles import job_of, new_entry
from support.models import toy

SIZES = ((1, 16, 16, 7), (2, 24, 40, 1), (3, 8, 8, 77))  # batch, height, width, tokens


def make(store: Store) -> dict[str, Any]:
    """Compile the toy and publish it as what is made for others is."""
    request = toy.request(toy.Toy(), ModelSource(None, "0" * 12))
    job = job_of(request, store.private.make_compiler_cache())
    with store.staging() as folder:
        done = compile_job.run(job, folder, WorkerPool(folder), lambda message: None)
        compiled = Compiled(done.files, done.constants, 1.0, done.code, outputs=done.outputs)
        at_least = {"torch": "{}.{}".format(*version())}
        new = dataclasses.replace(new_entry(request, job, compiled), at_least=at_least)
        store.publish(request.key.alternatives[-1], folder, new)
    return {}


def run(store: Store) -> dict[str, Any]:
    """Look the toy's graph up, and run it beside the toy."""
    module = toy.Toy()
    request = toy.request(module, ModelSource(None, "0" * 12))
    judged = store.find(request.key, code_guard.difference)
    if not isinstance(judged, Hit):
        return {"found": type(judged).__name__, "why": judged.reason.text}
    runner: Any = request.backend.load(judged.entry.folder, toy.CPU)
    weights = {f"{toy.PREFIX}{name}": value for name, value in module.state_dict().items()}
    runner.bind({name: weights[name] for name in runner.constant_names()})
    far = []
    for batch, height, width, tokens in SIZES:
        x, context = torch.randn(batch, 4, height, width), torch.randn(batch, tokens, 8)
        wanted = module(x, context)
        far.append(float((runner(x.clone(), context.clone()) - wanted).norm() / wanted.norm()))
    (region,) = runner._regions
    return {"found": "Hit", "loaded": type(region.loaded).__name__, "far": far}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    told = {"make": make, "run": run}[sys.argv[1]](Store())
    sys.stdout.write("\n" + json.dumps({"torch": torch.__version__, **told}) + "\n")
