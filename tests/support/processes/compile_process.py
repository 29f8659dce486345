"""A process that compiles a small model's graphs into the store and prints, as JSON, what it counted.

`compile_process.py unet CHECKPOINT [DTYPE [HEIGHT]]` or `... vae CHECKPOINT`, with `ONEGRAPH_HOME` set.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from headless import host


def main(component: str, checkpoint: Path, dtype: str | None, height: int) -> None:
    import torch

    host.import_pack()
    host.boot(cpu=not torch.cuda.is_available())
    from onegraph.host.calls import model_hook
    from onegraph.host.calls.vae import hook as vae_hook
    from onegraph.host.show import status
    from onegraph.runtime.obtain import registry as registry_module
    from onegraph.runtime.policy import ANY_SPEED

    registry_module.registry().policy = ANY_SPEED
    if component == "unet":
        model = host.load(checkpoint, **({"dtype": getattr(torch, dtype)} if dtype else {}))
        width = model.model.model_config.unet_config["context_dim"]
        fast = model_hook.compile_model(model, model_hook.ModelNodeOptions(), "node")[0]
        host.sample(fast, steps=1, height=height, width=256, context_width=width)
    else:
        options = vae_hook.VaeNodeOptions(parts="both", dynamic_resolution="any size")
        vae = vae_hook.compile_vae(host.load_vae(checkpoint), options, "node")[0]
        with torch.inference_mode():
            vae.decode(torch.zeros(1, 4, 32, 32))
            vae.encode(torch.zeros(1, 256, 256, 3))
    counters = registry_module.registry().counters
    counted = {name: getattr(counters, name) for name in ("compiles", "compiled_calls", "eager_calls")}
    print(json.dumps({**counted, "texts": [run.text() for run in status.last_runs.values()]}), flush=True)


if __name__ == "__main__":
    dtype = sys.argv[3] if len(sys.argv) > 3 else None
    main(sys.argv[1], Path(sys.argv[2]), dtype, int(sys.argv[4]) if len(sys.argv) > 4 else 256)
