"""Load libraries of graphs for a GPU, as far as a machine without one can: each function that they ask for is there.

load_cuda.py FOLDER...: each has the library, `graph.dll`, and stand-ins for the DLLs that this machine lacks.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - torch_cpu.dll is torch's own


def loaded(folder: Path) -> dict[str, Any]:
    """What of the interface a library has, or why it cannot be loaded."""
    try:
        library = ctypes.CDLL(str(folder / "graph.dll"))
    except OSError as error:
        return {"refused": str(error)}
    names = ("CreateWithDevice", "RunSingleThreaded", "UpdateUserManagedConstantBufferPairs", "GetNumConstants")
    return {"has": [name for name in names if hasattr(library, f"AOTInductorModelContainer{name}")]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({Path(one).name: loaded(Path(one)) for one in sys.argv[1:]}))
