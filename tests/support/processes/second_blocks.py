"""A second process: a pipeline whose transformer runs through the block graphs in a folder, told as JSON.

`python tests/support/processes/second_blocks.py FOLDER`, with `ONEGRAPH_HOME` for the user's folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.models import block_pipes


def main(folder: Path) -> None:
    from onegraph.pipelines import load_pipe
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    wanted = block_pipes.latents(block_pipes.qwen())
    pipe = load_pipe(block_pipes.qwen(), folder)
    distance = block_pipes.distance(block_pipes.latents(pipe), wanted)
    counters = registry().counters
    counted = {name: getattr(counters, name) for name in ("compiles", "restores", "compiled_calls", "eager_calls")}
    print(json.dumps({**counted, "distance": distance, "text": str(pipe.onegraph.report())}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
