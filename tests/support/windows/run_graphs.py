"""Load and run graphs by the pack's runner: `run_graphs.py FOLDER...`, with FOLDER.pt beside each. Prints JSON.

A folder is removed when its graph has gone: Windows removes no DLL that is loaded.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from onegraph.backends.inductor import runner
from onegraph.common.errors import LoadError

CPU = torch.device("cpu")


def run(folder: Path) -> dict[str, Any]:
    try:
        graph = runner.load(folder, CPU)
    except LoadError as error:
        return {"refused": str(error), "left": left()}
    stored = torch.load(folder.with_suffix(".pt"))
    graph.bind(stored["weights"])
    far = []
    for inputs, wanted in stored["cases"]:
        found = graph(*inputs)
        assert isinstance(found, torch.Tensor)
        far.append(float((found - wanted).norm() / wanted.norm()))
    loaded = sorted({type(region.loaded).__name__ for region in graph._regions})
    regions, while_loaded = len(graph._regions), left()
    graph.close()
    del graph
    gc.collect()
    return {"far": far, "by": loaded, "regions": regions, "while_loaded": while_loaded, "left": left()}


def left() -> int:
    """How many unpacked libraries there are."""
    return len([*Path(tempfile.gettempdir()).glob("onegraph-*/*/*/data/aotinductor/model/*.so")])


def main() -> None:
    tempfile.tempdir = tempfile.mkdtemp()  # of this process alone
    results = {}
    with torch.no_grad():
        for folder in map(Path, sys.argv[1:]):
            results[folder.name] = run(folder)
            shutil.rmtree(folder)
            results[folder.name]["removed"] = not folder.exists()
    print(json.dumps(results))


main()
