"""A second process: a pipeline through the graphs in a folder, told as JSON.

`python tests/support/processes/second_pipe.py KIND FOLDER`, with `ONEGRAPH_HOME` for the user's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.models import block_pipes, pipes

COUNTED = ("compiles", "restores", "compiled_calls", "eager_calls")
# Each with how it is made, what it computes, how far that is from eager's, and at which sizes.
KINDS: dict[str, tuple[Any, Any, Any, list[dict[str, int]]]] = {
    "sd": (pipes.sd, pipes.image, pipes.distance, [{}, {"height": 72, "width": 96}]),
    "qwen": (block_pipes.qwen, block_pipes.latents, block_pipes.distance, [{}]),
}


def told(kind: str, folder: Path, key: Path, home: Path) -> dict[str, Any]:
    """Have such a process run on graphs in a folder; what it tells.

    Its user's folder has no graphs, only the key that they were signed with.
    """
    home.mkdir()
    (home / key.name).write_bytes(key.read_bytes())
    (home / key.name).chmod(0o600)
    command = [sys.executable, "-W", "ignore", __file__, kind, str(folder)]
    environ = {**os.environ, "ONEGRAPH_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(kind: str, folder: Path) -> None:
    from onegraph.pipelines import load_pipe
    from onegraph.runtime.obtain.registry import registry
    from onegraph.runtime.policy import ANY_SPEED

    registry().policy = ANY_SPEED
    make, result, distance, sizes = KINDS[kind]
    eager = [result(make(), **size) for size in sizes]
    pipe = load_pipe(make(), folder)
    distances = [distance(result(pipe, **size), wanted) for size, wanted in zip(sizes, eager, strict=True)]
    counted = {name: getattr(registry().counters, name) for name in COUNTED}
    print(json.dumps({**counted, "distance": max(distances), "text": str(pipe.onegraph.report())}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
