"""What each command prints, on terminals of 40 and 100 columns and into a pipe, compared with golden/<command>.txt.

`ONEGRAPH_GOLDEN=rewrite pytest tests/unit/cli/test_golden.py` writes the files anew: read what differs before a commit.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet.stores import Publisher
from support.store.command import onegraph
from support.store.entries import bake, key, publish, quarantine, trust

from onegraph.cli import output
from onegraph.cli.app import app
from onegraph.common import installed
from onegraph.common.reasons import CompileFailed
from onegraph.common.stored_reasons import to_json
from onegraph.common.version import __version__
from onegraph.graph_cache import manifest
from onegraph.graph_cache.disk import listing
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.machine_notes import Failure
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="paths and addresses of files are others there")

GOLDEN = Path(__file__).parent / "golden"
REWRITE = os.environ.get("ONEGRAPH_GOLDEN") == "rewrite"
MODES = {"40 columns": 40, "100 columns": 100, "a pipe": None}

# Of each command: what it is run on and with. `remote` is `graphs`, and a store and a bundle of alice, who is trusted.
CASES: dict[str, list[str]] = {
    "onegraph": ["nothing: --version", "nothing: -h", "nothing: lss"],
    "doctor": ["nothing: doctor", "graphs: doctor"],
    "insert": ["nothing: insert TMP/typo.json", "nothing: insert TMP/empty.json", "nothing: insert TMP/x.json"],
    "bake": ["nothing: bake TMP/x.json --comfyui TMP/typo", "nothing: bake TMP/typo.json"],
    "explain": ["nothing: explain TMP/x.json", "nothing: explain TMP/typo.safetensors"],
    "bench": ["nothing: bench TMP/x.json --comfyui TMP --size big", "nothing: bench TMP/x.json --comfyui TMP/typo"],
    "ls": [
        "nothing: ls",
        "graphs: ls",
        "graphs: ls --long",
        "graphs: ls --filter model=typo",
        "graphs: ls --sort colour",
        "graphs: ls --filter state=typo",
        "graphs: ls TMP/typo",
    ],
    "stats": ["nothing: stats", "graphs: stats", "graphs: stats TMP/x.json"],
    "verify": ["nothing: verify", "graphs: verify", "damaged: verify", "graphs: verify TYPO"],
    "prune": [
        "nothing: prune",
        "graphs: prune --budget 1MB --dry-run",
        "graphs: prune --budget 1B",
        "pinned: prune --budget 1B",
        "damaged: prune --unusable",
        "graphs: prune --budget much",
    ],
    "pin": ["nothing: pin photo", "graphs: pin photo", "graphs: pin photo --in TMP/typo"],
    "unpin": ["graphs: unpin photo", "graphs: unpin typo"],
    "retry": ["nothing: retry", "graphs: retry"],
    "export": ["nothing: export --to TMP/y.tar", "graphs: export --to TMP/y.tar", "graphs: export --to TMP/x.json"],
    "import": [
        "remote: import --trust alice TMP/x.tar",
        "remote: import --trust typo TMP/x.tar",
        "remote: import --trust alice TMP/x.json",
    ],
    "trust": [
        "nothing: trust list",
        "remote: trust list",
        "nothing: trust show",
        "nothing: trust remove bob",
        "remote: trust remove alice",
        "nothing: trust add bob 123",
        f"nothing: trust add bob {64 * 'b'}",
    ],
    "push": ["nothing: push file://TMP/new", "graphs: push file://TMP/new", "graphs: push typo"],
    "pull": [
        "nothing: pull file://TMP/typo",
        "remote: pull --all file://TMP/remote",
        "remote: pull --trust bob file://TMP/remote",
    ],
    "mirror": ["remote: mirror file://TMP/remote file://TMP/copy", "nothing: mirror file://TMP/typo file://TMP/copy"],
    "withdraw": ["remote: withdraw file://TMP/remote photo", "nothing: withdraw file://TMP/typo photo"],
    "log": [
        "nothing: log file://TMP",
        "remote: log file://TMP/remote",
        "remote: log --publisher bob file://TMP/remote",
    ],
    "gc": ["remote: gc file://TMP/remote", "nothing: gc file://TMP/typo"],
}
SAME_ANYWHERE = ("insert TMP/x.json",)  # they start processes, which take a second
FILE_COMMANDS = ("ls", "stats", "verify", "prune", "retry", "trust list")
HELP = [*CASES, "trust add", "trust list", "trust remove", "trust show"]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.torch_version()  # remembered, before a test takes torch away
    for module in (listing, manifest):
        monkeypatch.setattr(module, "torch_version", lambda: "2.14")  # as graphs of tests are for
    monkeypatch.setenv("COMFYUI_PATH", "")
    monkeypatch.delenv("ONEGRAPH_DISK_BUDGET", raising=False)
    monkeypatch.chdir(tmp_path)


def prepare(tmp: Path, scene: str) -> Store:
    """What a command is run on."""
    tmp.mkdir(exist_ok=True)
    (tmp / "x.json").write_text("{}")
    (tmp / "empty.json").touch()
    store = Store(tmp / "home")
    if scene == "nothing":
        return store
    (tmp / "models").mkdir()
    (tmp / "models" / "photo.safetensors").touch()
    photo, other = ModelSource(tmp / "models" / "photo.safetensors", "0123456789ab"), ModelSource(None, "fedcba987654")
    used = publish(store, photo, content=bytes(1_500_000))
    store.note_use(used, "compiled", photo)
    store.remember(used, FirstUse(checked={"1": 1e-6}, eager_ms=3.0, compiled_ms=2.0))
    publish(store, other, key(dtype="float16", component="vae_decoder"), bytes(900))
    quarantine(store, publish(store, other, key(dtype="float64")).folder)
    store.notes.note_failures(key(), "any size", (Failure(kind="facts", reason=to_json(CompileFailed("It said no."))),))
    if scene == "pinned":
        for one in store.disk.entries():
            store.disk.pin(one)
    if scene == "damaged":
        (used.folder / "graph.aoti").write_bytes(b"")
    if scene == "remote":
        alice = Publisher(Store(tmp / "alice"))
        made = publish(alice.store, photo, key(dtype="bfloat16"))
        alice.push(f"file://{tmp}/remote", made)
        trust(store, bake(alice.store, tmp / "x.tar", made), "alice")
        Publisher(store).push(f"file://{tmp}/remote", used)
    return store


def shown(text: str, tmp: Path) -> str:
    """A text without what differs between machines and runs: paths, versions, digests and keys."""
    for name, path in {
        "TMP": tmp,
        "PYTHON": sys.executable,
        "PACK": Path(output.__file__).resolve().parents[1],
    }.items():
        text = text.replace(str(path), name)
    text = re.sub(r"^Python \d.*", "Python VERSION on SYSTEM: PYTHON", text, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{10,64}\b", lambda match: "0" * len(match[0]), text.replace(__version__, "VERSION"))
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def outputs(cases: list[str], tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What commands print; modes in which they print the same, together."""
    numbers = itertools.count(100)
    for case in cases:
        scene, _, line = case.partition(": ")
        modes = dict[str, list[str]]()
        for mode, columns in MODES.items():
            if columns is not None and (line in SAME_ANYWHERE or (scene == "remote" and columns > 40)):
                continue
            monkeypatch.setattr(output, "terminal_columns", lambda columns=columns: columns)
            folder = tmp / str(next(numbers))
            arguments = shlex.split(line.replace("TMP", str(folder)))
            done = onegraph(prepare(folder, scene), *arguments, columns=columns or 80)
            text = done.stdout + "".join(f"! {one}\n" for one in done.stderr.splitlines())
            modes.setdefault(shown(f"{text}exit {done.exit_code}\n", folder), []).append(mode)
        for text, names in modes.items():
            yield f"$ onegraph {line}    # {scene}; {', '.join(names)}\n{text}"


@pytest.mark.parametrize("name", CASES)
def test_what_a_command_prints(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor's machine has no torch, since what it tells of one differs between machines."""
    if name == "doctor":
        monkeypatch.setitem(sys.modules, "torch", None)
    helps = [f"nothing: {one} -h" for one in HELP if one.split()[0] == name and name != "onegraph"]
    text = "\n".join(outputs([*helps, *CASES[name]], tmp_path, monkeypatch))
    if REWRITE:
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
    assert text == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_every_command_has_a_file() -> None:
    names = {one.name for one in app.registered_commands} | {one.name for one in app.registered_groups} | {"onegraph"}
    assert names == CASES.keys() == {path.stem for path in GOLDEN.iterdir()}


def test_no_line_of_help_or_of_a_table_is_wider_than_its_terminal() -> None:
    """But for names that cannot be broken."""
    for path in GOLDEN.iterdir():
        for block in path.read_text(encoding="utf-8").split("\n$ "):
            first, *lines = block.splitlines()
            if "# nothing; 40 columns" in first and " -h " in first:
                assert [line for line in lines if len(line) > 40 and len(line.split()) > 1] == []
            if "; 40 columns\n" in f"{first}\n":
                assert [line for line in lines if "│" in line and len(line) > 40] == []


@pytest.mark.parametrize(
    "line", ["ls", "stats", "verify", "prune", "retry", "trust list", "log file://TMP/remote", "gc file://TMP/remote"]
)
@pytest.mark.parametrize("scene", ["nothing", "remote"])
def test_json_is_one_document_and_nothing_else(line: str, scene: str, tmp_path: Path) -> None:
    store = prepare(tmp_path, scene)
    (tmp_path / "remote").mkdir(exist_ok=True)
    done = onegraph(store, *line.replace("TMP", str(tmp_path)).split(), "--json")
    assert (done.exit_code, done.stderr) == (0, "") and json.loads(done.stdout)


@pytest.mark.parametrize(("encoding", "edge"), [("utf-8", "│"), ("cp1252", "|"), ("ascii", "|")])
def test_a_table_has_only_what_the_encoding_has(
    encoding: str, edge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "terminal_columns", lambda: 30)
    written = list[str]()
    monkeypatch.setattr(output.typer, "echo", written.append)
    monkeypatch.setattr(output.sys, "stdout", type("Stream", (), {"encoding": encoding}))
    output.print_table(
        ("model", "shapes", "state"), [("a-long-name-of-a-model/00", "any size 512-2048", "signed")], ["shapes"]
    )
    first, _, last = "".join(written).encode(encoding).decode(encoding).splitlines()
    assert edge in first and "shapes" not in first and len(last) <= 30
    assert last.startswith("a-long-na") and "model/00" in last and last.endswith("signed")
