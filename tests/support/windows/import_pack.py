"""Import every module of the pack that needs no ComfyUI and no other package than Windows has here. Prints JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch

import onegraph

PACKAGES = ("common", "signature", "graph_cache", "backends", "compiler", "runtime", "cli")
NOT_HERE = ("oneflow", "ray", "jinja2", "diffusers")


def main() -> None:
    root, failed, count = Path(onegraph.__file__).parent, {}, 0
    for path in (path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        name = ".".join(("onegraph", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        try:
            importlib.import_module(name)
            count += 1
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(NOT_HERE):
                failed[name] = repr(error)
        except Exception as error:
            failed[name] = repr(error)
    from onegraph.backends.inductor import InductorBackend

    backend, cpu = InductorBackend(), torch.device("cpu")
    refused = backend.can_compile(cpu).reason
    result = {"system": os.name, "encoding": sys.stdout.encoding, "modules": count, "failed": failed}
    print(json.dumps({**result, "compiles": refused and refused.code, "runs": backend.can_run(cpu).ok}))


main()
