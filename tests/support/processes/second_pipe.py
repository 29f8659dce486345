"""A second process: a pipeline through the graphs in a folder, told as JSON.

`python tests/support/processes/second_pipe.py NAME FOLDER`, with `ONEGRAPH_HOME` for the user's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.models import block_pipes, pipes
from support.scenes.judge import distance


def sd(folder: Path) -> dict[str, Any]:
    from onegraph.pipelines import load_pipe

    sizes = ({"height": 64, "width": 64}, {"height": 72, "width": 96})
    eager = [pipes.image(pipes.sd(), **size) for size in sizes]
    pipe = load_pipe(pipes.sd(), folder)
    distances = [pipes.distance(pipes.image(pipe, **size), wanted) for size, wanted in zip(sizes, eager, strict=True)]
    return {"distances": distances, "report": pipe.onegraph.report().to_json()}


def blocks(folder: Path) -> dict[str, Any]:
    from onegraph.pipelines import load_pipe

    wanted = block_pipes.latents(block_pipes.qwen())
    pipe = load_pipe(block_pipes.qwen(), folder)
    return {"distance": distance(block_pipes.latents(pipe), wanted), "text": str(pipe.onegraph.report())}


def told(name: str, saved: Path, user: Path, signer: Path) -> dict[str, Any]:
    """What such a process tells, of a user whose folder has nothing but the key that another one's graphs are signed
    with.
    """
    user.mkdir()
    (user / "signing.key").write_bytes((signer / "signing.key").read_bytes())
    (user / "signing.key").chmod(0o600)
    command = [sys.executable, "-W", "ignore", __file__, name, str(saved)]
    environment = {**os.environ, "ONEGRAPH_HOME": str(user)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(name: str, folder: Path) -> None:
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    found, counters = {"sd": sd, "blocks": blocks}[name](folder), registry().counters
    counted = {name: getattr(counters, name) for name in ("compiles", "restores", "compiled_calls", "eager_calls")}
    print(json.dumps({**counted, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
