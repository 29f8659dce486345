"""locales/en/nodeDefs.json: the texts of the nodes, as their classes have them, for ComfyUI's translations.

`.venv/bin/python tools/node_texts.py` writes it again after a text changed. The other languages are written by people;
tests/host/test_locales.py finds what they lack.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headless import host

FILE = Path(__file__).resolve().parents[1] / "locales" / "en" / "nodeDefs.json"


def texts() -> dict[str, Any]:
    """Of each node that is not deprecated: names, description, inputs and outputs. ComfyUI must be booted."""
    from onegraph import nodes

    found: dict[str, Any] = {}
    for node in nodes.NODES:
        schema = node.define_schema()
        found[schema.node_id] = {
            "display_name": schema.display_name,
            "description": schema.description,
            "inputs": {one.id: {"name": one.id, "tooltip": one.tooltip} for one in schema.inputs},
            "outputs": {str(i): {"name": one.io_type} for i, one in enumerate(schema.outputs)},
        }
    return found


def main() -> None:
    host.boot()
    host.import_pack()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(texts(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
