"""Manifests that a program or a person wrote otherwise: a call is served right or runs eager, and is so only once.

What a look-up says of each is for tests/unit; here it is what a server does with them. Most are signed with the user's
own key, so that more than the signature has to hold.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.lives import Case, live
from support.store.entries import snapshot
from typer.testing import CliRunner

from onegraph.cli.app import app
from onegraph.graph_cache.integrity import record
from onegraph.graph_cache.manifest import CONSTANTS_FILE, MANIFEST_FILE
from onegraph.graph_cache.trust.signing import SIGNATURE_FILE, Signer

Manifest = dict[str, Any]
Attack = Callable[[Manifest], bytes]


def edited(**changes: Any) -> Attack:
    return lambda manifest: json.dumps({**manifest, **changes}).encode()


def with_file(name: str) -> Attack:
    """The graph's file once more, under another name."""

    def attack(manifest: Manifest) -> bytes:
        files = manifest["files"]
        return json.dumps({**manifest, "files": {**files, name: files["graph.aoti"]}}).encode()

    return attack


def with_code(**changes: Any) -> Attack:
    return lambda manifest: json.dumps({**manifest, "code": {**manifest["code"], **changes}}).encode()


def of_another_key(manifest: Manifest) -> bytes:
    return json.dumps({**manifest, "key": {**manifest["key"], "architecture": "00"}}).encode()


def of_another_size(manifest: Manifest) -> bytes:
    record = manifest["files"]["graph.aoti"]
    return json.dumps({**manifest, "files": {"graph.aoti": {**record, "bytes": 1 << 62}}}).encode()


def twice_the_files(manifest: Manifest) -> bytes:
    """Which of the two counts depends on the parser."""
    text = json.dumps(manifest)
    return (text[:-1] + ', "files": {"plan.json": {"bytes": 2, "blake3": "' + 64 * "0" + '"}}}').encode()


def padded(manifest: Manifest) -> bytes:
    return json.dumps(manifest).encode() + (5 << 20) * b" "


def nested(manifest: Manifest) -> bytes:
    return 100_000 * b"[" + 100_000 * b"]"


def a_huge_number(manifest: Manifest) -> bytes:
    text = json.dumps({**manifest, "compile_seconds": "here"})
    return text.replace('"here"', "1" + 100_000 * "0").encode()


# The graph serves all the same.
HARMLESS: dict[str, Attack] = {
    "markup in its label": edited(label="[red]any size[/red] [link=https://x]\n\x1b[31m"),
    "a label like a path": edited(label="../../../../tmp/x"),
    "a long label": edited(label=10_000 * "x"),
    "CUDA graphs on a CPU": edited(cuda_graphs=True),
    "markup in its version": edited(made_by="[bold]", created="[/]"),
    "no compile time": edited(compile_seconds=float("nan")),
    "no code": edited(code=None),
    "code of another Python": with_code(python="2.7"),
}
# It does not, and one compile makes another.
HARMFUL: dict[str, Attack] = {
    "another key": of_another_key,
    "no key": edited(key={}),
    "no file": edited(files={}),
    "a plan for other files": with_file("plan.json"),
    "a file of the store": with_file("outcome.json"),
    "a file elsewhere": with_file("../outside"),
    "an absolute path": with_file("/etc/passwd"),
    "a name of 300 characters": with_file(300 * "x"),
    "a name that is no text": with_file("\ud800"),
    "a file of 4 EiB": of_another_size,
    "files named twice": twice_the_files,
    "code that is not there": with_code(functions={"antigravity:fly": ["00", "00"]}),
    "another version": edited(version=99),
    "fields of its own": edited(command="touch /tmp/x"),
    "5 MB": padded,
    "100,000 brackets": nested,
    "a number of 100,000 digits": a_huge_number,
    "bytes": lambda manifest: bytes(range(256)),
    "no bytes": lambda manifest: b"",
    "a mark of its byte order": lambda manifest: b"\xef\xbb\xbf" + json.dumps(manifest).encode(),
}
# As others of them, for what a quick look needs.
ALIKE = {"no key", "an absolute path", "a name that is no text", "fields of its own", "bytes", "no bytes"}
# Others than the model has: eager, for this user's own installation wrote so, and another compile would, too.
WEIGHTS: dict[str, dict[str, Any]] = {
    "a weight of another model": {"name": "toy.nothing"},
    "a weight of another shape": {"shape": [1 << 40], "stride": [1]},
    "a weight of another type": {"dtype": "float64"},
}


def sign(case: Case, folder: Path, manifest: bytes) -> None:
    """Write a manifest with this user's signature."""
    (folder / MANIFEST_FILE).write_bytes(manifest)
    (folder / SIGNATURE_FILE).write_text(Signer(case.home).sign(manifest).model_dump_json())


def manifest_of(folder: Path) -> Manifest:
    found: Manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    return found


def no_command_fails(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEGRAPH_HOME", str(case.home))
    for command, codes in (("ls", {0}), ("verify", {0, 1})):
        result = CliRunner().invoke(app, [command, str(case.models)])
        assert result.exit_code in codes and isinstance(result.exception, SystemExit | None), result


@pytest.fixture
def case(case: Case) -> Case:
    """Without a copy beside the checkpoint, which would take the place of what is wrong."""
    shutil.rmtree(case.models / "photo.graphs")
    return case


@pytest.mark.parametrize("name", HARMLESS)
def test_a_manifest_that_is_odd(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = case.entry.folder
    sign(case, folder, HARMLESS[name](manifest_of(folder)))
    no_command_fails(case, monkeypatch)
    live(case).restored()
    assert (case.compiles, case.leftovers()) == (0, [])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in ALIKE else ()) for name in HARMFUL]
)
def test_a_manifest_that_is_wrong(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = case.entry.folder
    sign(case, folder, HARMFUL[name](manifest_of(folder)))
    no_command_fails(case, monkeypatch)
    report = live(case, runs=2).fine()
    assert report.codes in ((), ("compiled_again_later",))
    live(case).restored()
    assert (case.compiles, case.leftovers()) == (1, [])


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_the_model_lacks(name: str, case: Case) -> None:
    folder = case.entry.folder
    listed = json.loads((folder / CONSTANTS_FILE).read_bytes())
    first, *others = listed["constants"]
    (folder / CONSTANTS_FILE).write_text(json.dumps({**listed, "constants": [{**first, **WEIGHTS[name]}, *others]}))
    manifest = manifest_of(folder)
    manifest["files"][CONSTANTS_FILE] = record(folder / CONSTANTS_FILE).model_dump()
    sign(case, folder, json.dumps(manifest).encode())
    for _ in range(2):
        report = live(case, runs=2).fine()
        assert set(report.codes) <= {"no_such_weight", "weight_differs", "bind_failed"}
        assert report.compiled_calls == 0
    assert (case.compiles, case.leftovers()) == (0, [])


@pytest.mark.parametrize("name", ["markup in its label", "another key", "a plan for other files"])
def test_a_manifest_that_nobody_signed(name: str, case: Case) -> None:
    """Not loaded, and neither changed nor removed; a graph of this user's own stands beside it."""
    folder = case.entry.folder
    (folder / MANIFEST_FILE).write_bytes({**HARMLESS, **HARMFUL}[name](manifest_of(folder)))
    before = snapshot(folder)
    assert live(case, when_missing="eager").fine().codes == ("wrong_signature",)
    assert live(case).fine().compiles == 1
    live(case).restored()
    assert snapshot(folder) == before
    assert (case.compiles, case.leftovers()) == (1, [])
