"""Time a store of many graphs: `.venv/bin/python benchmarks/cpu/store.py`.

Fills a home with signed entries whose manifests are as large as those of SDXL's UNet, and measures look-ups (hit, miss,
sibling) in a new process (`cold`: its first look-up; `process`: from its start to its end) and again in the same one
(`warm`, median), `onegraph ls` and `onegraph verify`. Files are in the page cache. Prints a table and writes
build/benchmarks/store.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "benchmarks"
COMPONENTS = ("unet", "vae_decoder", "vae_encoder")
LOOKUPS = ("hit", "miss", "sibling")
PATIENCE = 10.0  # seconds, after which nothing is measured once more


@dataclass(frozen=True)
class Filled:
    """A store.

    Attributes:
        folder: holds the user's folder.
        components: among which the entries are spread evenly, one after the other.
        weights: that each manifest describes; SDXL's UNet has 1,680.
    """

    folder: Path
    entries: int
    components: int
    weights: int

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def component(self, number: int) -> str:
        """The component of an entry."""
        return COMPONENTS[number % self.components]

    @staticmethod
    def read(text: str) -> Filled:
        fields = json.loads(text)
        return Filled(**{**fields, "folder": Path(fields["folder"])})


# In children, by the package of either checkout -----------------------------------------------------------------


def key(number: int, component: str, **changed: Any) -> Any:
    """The key of an entry: half of them differ in the sizes alone, as of one architecture."""
    from onegraph.graph_cache.key import GraphKey

    size = 64 + 8 * number
    fields: dict[str, Any] = {
        "component": component,
        "architecture": f"{0 if number % 2 else number:064x}",
        "shapes": {
            "dims": {"batch": [1, 2, 1], "height": [size, size, 1], "width": [size, size, 1], "context": [77, 77, 1]},
            "inputs": [{"shape": ["batch", 4, "height", "width"], "dtype": "float16"}] * 4,
        },
        "dtype": "float16",
        "backend": "inductor",
        "target": {"device": "cuda", "capability": "9.0", "cuda": "13.0", "torch": "2.11.0", "system": "Linux-x86_64"},
    }
    return GraphKey(**{**fields, **changed})


def fill(store: Filled) -> None:
    """Publish one entry, and write the others like it, since to publish hundreds takes a minute."""
    from onegraph.common.tensor_meta import TensorMeta
    from onegraph.graph_cache.first_use_results import FirstUse
    from onegraph.graph_cache.layout import entry_name
    from onegraph.graph_cache.manifest import CodeRecord
    from onegraph.graph_cache.publish import NewEntry
    from onegraph.graph_cache.store import Store

    names = [f"unet.output_blocks.{i % 9}.1.transformer_blocks.{i}.attn1.to_q.weight" for i in range(store.weights)]
    code = CodeRecord(
        python="3.10",
        functions={f"comfy.ldm.modules.attention:Block{i}.forward": (f"{i:032x}", f"{i:032x}") for i in range(120)},
        references={f"comfy.ldm.modules.attention:name{i}": "torch.nn.functional" for i in range(100)},
        methods={},
    )
    cache = Store(store.home)
    weights = tuple(TensorMeta(name, (640, 640), (640, 1), "float16") for name in names)
    new = NewEntry("@label@", ("graph.aoti",), weights, 40.0, "0.1.0", code)
    first = key(0, "@component@", architecture="@architecture@", shapes={"@shapes@": 0})
    with cache.staging() as staged:
        (staged / "graph.aoti").write_bytes(bytes(4096))
        template = cache.publish(first, staged, new)
    cache.remember(template, FirstUse(checked={"1": 1e-3, "n": 1e-3}, eager_ms=58.4, compiled_ms=31.7))
    text = (template.folder / "manifest.json").read_text()
    start = text.index("{", text.index('"shapes"'))
    shapes = text[start : text.index("}", start) + 1]
    others = [p for p in template.folder.iterdir() if p.name not in ("manifest.json", "signature.json")]
    for number in range(store.entries):
        component = store.component(number)
        wanted, label = key(number, component), f"{8 * (64 + 8 * number)}x{8 * (64 + 8 * number)}"
        manifest = text.replace(shapes, json.dumps(wanted.shapes), 1).replace("@architecture@", wanted.architecture, 1)
        manifest = manifest.replace("@component@", component, 1).replace("@label@", label, 1)
        name = entry_name(wanted, template.manifest).replace("label", label)
        folder = cache.graphs / component / name
        folder.mkdir(parents=True)
        for file in others:
            os.link(file, folder / file.name)
        signature = cache.signer.sign(manifest.encode())
        (folder / "signature.json").write_text(signature.model_dump_json(indent=1))
        (folder / "manifest.json").write_text(manifest)
    shutil.rmtree(template.folder.parent)


def measure_lookup(store: Filled, which: str, most: int) -> dict[str, Any]:
    """The first look-up of a process, and the median of later ones, `most` in all."""
    from onegraph.graph_cache.store import Store

    number = store.entries // 2
    component = store.component(number)
    cache = Store(store.home)
    calls: dict[str, Callable[[], Any]] = {
        "hit": lambda: cache.find(key(number, component)),
        "miss": lambda: cache.find(key(number, component, shapes={})),
        "sibling": lambda: cache.sibling(key(number, component, shapes={})),
    }
    times: list[float] = []
    found = None
    while len(times) < most and sum(times) < 1e3 * PATIENCE:
        began = time.perf_counter()
        found = calls[which]()
        times.append(1e3 * (time.perf_counter() - began))
    found = str(getattr(found, "reason", "")) or type(found).__name__
    return {"found": found, "cold_ms": times[0], "warm_ms": statistics.median(times[1:] or times)}


# The parent -----------------------------------------------------------------------------------------------------


def child(checkout: Path, arguments: list[str], home: Path) -> tuple[str, float, float]:
    """Run Python with the package of a checkout: what it prints, its seconds, and the MB it takes at most."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "ONEGRAPH_HOME": str(home), "COLUMNS": "200"}
    output = OUT / "store.out"
    with output.open("wb") as file:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=file)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{arguments}: exit code {process.returncode}")
    return output.read_text(), seconds, usage.ru_maxrss / 1e3


def measure(checkout: Path, store: Filled, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {}
    for name, command in (("ls", "ls"), ("verify", "verify")):
        program = "from onegraph.cli import main; main()"
        text, seconds, peak = child(checkout, ["-c", program, command], store.home)
        counted = sum(line.startswith("sound") for line in text.splitlines())
        if (f"{store.entries} graphs" not in text) if command == "ls" else (counted != store.entries):
            raise SystemExit(f"{command} found something else: {text[-300:]}")
        row |= {f"{name}_s": round(seconds, 2), f"{name}_mb": round(peak)}
    for which in LOOKUPS:
        found: list[dict[str, Any]] = []
        began = time.perf_counter()
        while len(found) < rounds and time.perf_counter() - began < PATIENCE:
            text, seconds, _ = child(checkout, [__file__, "--lookup", which, spec(store), "1"], store.home)
            found.append({**json.loads(text), "process_ms": 1e3 * seconds})
            text, _, _ = child(checkout, [__file__, "--lookup", which, spec(store), "31"], store.home)
            found[-1]["warm_ms"] = json.loads(text)["warm_ms"]
        row[which] = {k: round(statistics.median(f[k] for f in found), 2) for k in ("cold_ms", "warm_ms", "process_ms")}
        row[which]["found"] = found[0]["found"]
    return row


def spec(store: Filled) -> str:
    return json.dumps({**asdict(store), "folder": str(store.folder)})


def linked(checkout: Path, work: Path) -> Path:
    """A folder in which a checkout has the name of its package."""
    folder = work / "checkout"
    folder.mkdir(parents=True)
    (folder / "onegraph").symlink_to(checkout.resolve(), target_is_directory=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Time look-ups and commands in a store of many graphs.")
    parser.add_argument("--entries", type=int, default=500)
    parser.add_argument("--components", type=int, nargs="+", default=[3, 1])
    parser.add_argument("--weights", type=int, default=1680, help="that each manifest describes")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each look-up")
    parser.add_argument("--work", type=Path, default=OUT / "store")
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    parser.add_argument("--lookup", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill(Filled.read(options.fill))
        return
    if options.lookup:
        which, text, most = options.lookup
        print(json.dumps(measure_lookup(Filled.read(text), which, int(most))))
        return
    shutil.rmtree(options.work, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    link = linked(ROOT, options.work)
    rows: list[dict[str, Any]] = []
    for components in options.components:
        store = Filled(options.work / "store", options.entries, components, options.weights)
        child(link, [__file__, "--fill", spec(store)], store.home)
        rows.append({"components": components, **measure(link, store, options.rounds)})
        print(rows[-1], file=sys.stderr)
        shutil.rmtree(store.folder)
    shutil.rmtree(options.work)
    show(rows)
    report = {"machine": platform.processor() or platform.machine(), "python": platform.python_version(), "rows": rows}
    (OUT / "store.json").write_text(json.dumps(report | {"entries": options.entries}, indent=1) + "\n")


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    times = [f"{which}, ms" for which in LOOKUPS]
    table = Table("components", *times, "ls", "verify", caption="warm / cold / process")
    for row in rows:
        lookups = ["{warm_ms} / {cold_ms} / {process_ms:.0f}".format(**row[which]) for which in LOOKUPS]
        commands = [f"{row[f'{c}_s']} s, {row[f'{c}_mb']} MB" for c in ("ls", "verify")]
        table.add_row(str(row["components"]), *lookups, *commands)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
