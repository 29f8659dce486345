"""A second process: a StableDiffusionPipeline through the graphs in a folder, told as JSON.

`python tests/support/processes/second_pipe.py FOLDER`, with `ONEGRAPH_HOME` for the user's folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.models import pipes


def main(folder: Path) -> None:
    from onegraph.pipelines import load_pipe
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    sizes = ({"height": 64, "width": 64}, {"height": 72, "width": 96})
    eager = [pipes.image(pipes.sd(), **size) for size in sizes]
    pipe = load_pipe(pipes.sd(), folder)
    images = [pipes.image(pipe, **size) for size in sizes]
    counters = registry().counters
    counted = {name: getattr(counters, name) for name in ("compiles", "restores", "compiled_calls", "eager_calls")}
    distances = [pipes.distance(a, b) for a, b in zip(images, eager, strict=True)]
    print(json.dumps({**counted, "distances": distances, "report": pipe.onegraph.report().to_json()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
