"""The sizes section of `benchmarks/gpu`: the usual sizes' graph against that for every multiple of 8 pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .common import Bench, median_ms, never_replayed, peak_bytes, replayed_ms
from .compile import compile_at_once
from .component import Call

if TYPE_CHECKING:
    from .graphs import Unet

EVERY = "every_size"
# In pixels. The second and third differ by one latent row; the last is beyond what the usual graph serves.
CALLS = ((1024, 1024, 2), (1920, 1080, 2), (1920, 1088, 2), (1000, 1000, 1), (2560, 1440, 1))


def run(bench: Bench) -> None:
    """Compile both graphs side by side and time them in turns with eager."""
    import torch
    from headless import host

    from onegraph.host.calls import model_hook as hook

    from .graphs import TOKENS, Unet

    with torch.inference_mode():
        unet = Unet(bench, bench.model)
        unet.compiles.pop("exact", None)
        width, height = (side * bench.side // 1024 // 8 * 8 for side in (1920, 1080))
        settings = {**unet.settings, "height": height, "width": width}
        hooked = hook.compile_model(unet.patcher, hook.ModelNodeOptions(), "ask-every-size")[0]
        unet.ask(EVERY, functools.partial(host.sample, hooked, steps=1, **settings), "ask-every-size")
        compile_at_once(bench, dict(unet.compiles), bench.deadline - 60)
        for name, compile_ in unet.compiles.items():
            if compile_.refused is not None:
                bench.put("sizes", **{f"{name}_refused": compile_.refused})
                continue
            manifest = compile_.graph.entry.manifest
            bench.put("sizes", **{f"{name}_compile_s": manifest.compile_seconds, f"{name}_stages": compile_.stages})
        rows: list[dict[str, Any]] = []
        for sides in CALLS:
            if bench.left() < 20:
                break
            wide, high, batch = sides
            call = Call(wide * bench.side // 1024 // 8 * 8, high * bench.side // 1024 // 8 * 8, batch, TOKENS)
            rows.append(row(unet, call))
            bench.put("sizes", rows=rows)
            bench.say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))


def row(unet: Unet, wanted: Call) -> dict[str, Any]:
    """Eager and each graph that serves the call: launched, then replayed where that pays."""
    rounds = max(3, unet.bench.rounds // 2)
    given = unet.inputs(wanted)
    eager = functools.partial(unet.eager, given)
    calls: dict[str, Callable[[], Any]] = {"eager": eager}
    found: dict[str, Any] = dict(vars(wanted))
    for name, compile_ in unet.compiles.items():
        dims = compile_.request.shapes
        outside = [dims.dim(dim).refusal(size) for dim, size in unet.sizes(wanted).items()]
        if compile_.refused is None and not any(outside):
            calls[name] = unet.call(name, given, wanted)
    with never_replayed():
        reference = eager()
        for name, call in calls.items():
            if name != "eager":
                found[f"{name}_rel_l2_to_eager"] = unet.relative_l2(call(), reference)
        found |= {f"{name}_ms": spent for name, spent in median_ms(calls, rounds, 2).items()}
        found |= {f"{name}_peak_mib": peak_bytes(call)[0] >> 20 for name, call in calls.items()}
    for name, call in calls.items():
        spent = replayed_ms(call, rounds) if name != "eager" and unet.bench.device == "cuda" else None
        if spent is not None:
            found[f"{name}_replayed_ms"] = spent
            found[f"{name}_replayed_rel_l2"] = unet.relative_l2(call(), reference)
        if name != "eager":
            unet.compiles[name].engine.release_captures(unet.compiles[name].request.device, "freed")
    return found
