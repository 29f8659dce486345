"""The fleet section of `benchmarks/gpu`: a new machine's first step, its graphs from a store on the network.

A server with an empty home, weights on its disk, and a store behind HTTP on this machine, which it may only read. What
counts is the first step after queueing, beside that of a fresh server without the nodes: both load the same weights.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .common import ROOT, Bench
from .server import STEPS, one, prompt_of

PUBLISHER = "studio"
WAYS = ("eager", "store", "store, first use trusted", "store, warmed up", "kept")


def first_step(outcome: Any) -> float | None:
    """Seconds from queueing to the end of the sampler's first step; a compile's progress has another end."""
    return next((round(seconds, 2) for value, most, seconds, _ in outcome.ticks if (value, most) == (1, STEPS)), None)


def run(bench: Bench) -> None:
    sys.path[:0] = [str(ROOT / "tests")]
    from headless import server
    from support.fleet.servers import http_server
    from support.fleet.stores import Publisher

    from onegraph.graph_cache.sources import exporting
    from onegraph.graph_cache.store import Store

    prompt = prompt_of(bench, STEPS)
    server.prepare_base(bench.work / "base")

    def compiled(found: dict[str, Any], running: Any) -> None:
        outcome = running.run(prompt, seconds=bench.left())
        found |= {"status": outcome.status, "said": dict(outcome.texts), "first_step_s": first_step(outcome)}

    bench.put("fleet", publisher=one(bench, "publisher", (), compiled))
    publisher = Publisher(Store(bench.work / "home"))
    entries = [*exporting.find(bench.checkpoint(bench.model).parent)]
    folder = bench.work / "store"
    folder.mkdir(exist_ok=True)
    pushed = publisher.push(folder.as_uri(), *entries)
    bench.put("fleet", pushed=len(pushed), store_mib=round(sum(f.stat().st_size for f in folder.rglob("*")) / 2**20, 2))
    with http_server(folder) as store:
        for way in WAYS:
            row = _first_step(bench, way, prompt, publisher.public, store)
            bench.put("fleet", **{way: row})
            bench.say(f"{way}: " + str({k: v for k, v in row.items() if k != "log_marks"}))
    steps = {way: bench.result["fleet"][way].get("first_step_s") for way in WAYS}
    if steps["eager"] is not None:  # of the others, those that the time was enough for
        known = {way: seconds for way, seconds in steps.items() if way != "eager" and seconds is not None}
        beyond = {way: round(seconds - steps["eager"], 2) for way, seconds in known.items()}
        bench.put("fleet", beyond_weights_s=beyond)
        bench.say(f"beyond a fresh eager server's first step: {beyond}")


def _first_step(bench: Bench, way: str, prompt: Any, public: str, store: Any) -> dict[str, Any]:
    """Start a machine's server and queue two prompts; the seconds to their first steps, and what it fetched."""
    from headless import server, workflows

    from onegraph.graph_cache.sources.transport import STORES
    from onegraph.graph_cache.trust import trust_list
    from onegraph.graph_cache.trust.publishers import Publishers
    from onegraph.host.page import warm_up
    from onegraph.runtime.obtain import published_use

    machine = "store" if way == "kept" else way
    base = bench.work / f"machine-{machine.replace(', ', '-').replace(' ', '-')}"
    server.prepare_base(base)
    weights = bench.checkpoint(bench.model)
    held = base / "models" / "checkpoints" / weights.name
    if not held.exists():
        os.link(weights, held)  # in a folder of its own, where no graph is
        trust_list.add(Publishers(base / "home"), PUBLISHER, public)
    environ = {"ONEGRAPH_HOME": str(base / "home"), STORES: store.url}
    if "trusted" in way:
        environ[published_use.VARIABLE] = PUBLISHER
    if "warmed" in way:
        (base / "list").write_text(f"{warm_up.ALL}\n")
        environ[warm_up.VARIABLE] = str(base / "list")
    asked, sent = len(store.asked), store.sent

    def first(found: dict[str, Any], running: Any) -> None:
        if "warmed" in way:
            found["ready_s"] = round(running.wait_warm(), 2)
        nodes = workflows.without_onegraph(prompt) if way == "eager" else prompt
        outcome = running.run(nodes, seconds=bench.left())
        found |= {"status": outcome.status, "said": dict(outcome.texts), "first_step_s": first_step(outcome)}
        again = running.run(workflows.with_inputs(nodes, "KSampler", seed=2), seconds=bench.left())
        found["next_prompt_first_step_s"] = first_step(again)

    found = one(bench, "fleet", (), first, base, environ)
    return found | {"requests": len(store.asked) - asked, "fetched_mib": round((store.sent - sent) / 2**20, 2)}
