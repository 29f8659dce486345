"""A second process: run a cached graph and print, as JSON, the counters and the distance from eager.

`python tests/support/processes/second_process.py CHECKPOINT DTYPE`, with `ONEGRAPH_HOME` as the first process had it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from headless import host


def main(checkpoint: Path, dtype: str) -> None:
    import torch

    host.import_pack()
    host.boot(cpu=not torch.cuda.is_available())
    from onegraph.host.calls import model_hook as hook
    from onegraph.host.show import status
    from onegraph.runtime.graphs.faithfulness import relative_l2
    from onegraph.runtime.obtain import registry as registry_module
    from onegraph.runtime.policy import ANY_SPEED

    registry_module.registry().policy = ANY_SPEED
    model: Any = host.load(checkpoint, dtype=getattr(torch, dtype))
    result = host.sample(hook.compile_model(model, hook.ModelNodeOptions(), "node")[0], height=256, width=256)
    error = relative_l2(result, host.sample(model, height=256, width=256))
    counters = registry_module.registry().counters
    counted = {name: getattr(counters, name) for name in ("compiles", "restores", "compiled_calls", "eager_calls")}
    print(json.dumps({**counted, "rel_l2": error, "text": status.last_runs["node"].text()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
