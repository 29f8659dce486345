"""Commands on cached graphs: lists, sums, the budget, pins; each as JSON, too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.store.command import onegraph
from support.store.entries import key, publish, quarantine
from support.windows.absent import needs_posix

from onegraph.common.installed import torch_version
from onegraph.graph_cache.disk.budget import DEFAULT, current, parse
from onegraph.graph_cache.disk.marks import note_use
from onegraph.graph_cache.disk.report import STATES
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


@pytest.fixture
def graphs(store: Store) -> dict[str, Entry]:
    """Two that can be used here, of two sizes, and one of another torch; the first is the least recently used."""
    here = {"device": "cpu", "torch": torch_version()}
    source = ModelSource(None, "fedcba987654")
    found = {
        "small": publish(store, source, key(target=here), bytes(10_000)),
        "large": publish(store, source, key(target=here, component="vae_decoder", dtype="float16"), bytes(90_000)),
        "old": publish(store, source, key(), bytes(50_000)),
    }
    for number, entry in enumerate(found.values()):
        note_use(entry.folder, "restored", source)
        for path in entry.folder.iterdir():
            os.utime(path, (1e9 + number, 1e9 + number))
    store.remember(found["large"], FirstUse(checked={"1": 1e-6}, eager_ms=3.0, compiled_ms=2.0))
    return found


def words(output: str) -> str:
    """What is written in the box that typer draws."""
    return " ".join(output.replace("│", " ").split())


def as_json(store: Store, *arguments: object, code: int = 0) -> Any:
    done = onegraph(store, *arguments, "--json")
    assert done.exit_code == code
    return json.loads(done.stdout)


def folders(rows: list[dict[str, Any]]) -> list[Path]:
    return [Path(row["folder"]) for row in rows]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("component=unet", ["small", "old"]), ("dtype=float16", ["large"]), ("state=stale", ["old"]),
        ("model=unknown*", ["small", "large", "old"]), ("model=photo", []), ("shapes=any*", ["small", "large", "old"]),
        ("state=pinned", ["large"]), ("backend=oneflow", []),
    ],
)  # fmt: skip
def test_ls_filters(pattern: str, found: list[str], store: Store, graphs: dict[str, Entry]) -> None:
    assert onegraph(store, "pin", store.disk.entries()[2].id).exit_code == 0  # the VAE's comes last
    rows = as_json(store, "ls", "--filter", pattern)["graphs"]
    assert {*folders(rows)} == {graphs[name].folder for name in found}


@pytest.mark.parametrize(
    ("sort", "first"), [("size", "large"), ("used", "old"), ("speed", "large"), ("component", "small")]
)
def test_ls_sorts(sort: str, first: str, store: Store, graphs: dict[str, Entry]) -> None:
    rows = as_json(store, "ls", "--sort", sort)["graphs"]
    assert len(rows) == 3
    assert rows[0]["component"] == graphs[first].manifest.key["component"]
    if sort != "component":
        assert folders(rows)[0] == graphs[first].folder


def test_ls_refuses_what_it_does_not_know(store: Store) -> None:
    for arguments in (["--sort", "colour"], ["--filter", "colour=red"], ["--filter", "model"]):
        assert onegraph(store, "ls", *arguments).exit_code == 2
    refused = onegraph(store, "ls", "--filter", "state=foo")
    assert refused.exit_code == 2 and "No graph has such a state. States are signed, stale," in words(refused.output)
    for state in STATES:
        assert onegraph(store, "ls", "--filter", f"state={state}").exit_code == 0


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_ls_long_and_json_tell_what_is_known(store: Store, graphs: dict[str, Entry]) -> None:
    lease = store.lease(graphs["small"])
    text = onegraph(store, "ls", "--long").stdout
    assert "in use" in text and f"the graph is for torch 2.14, and here is {torch_version()}" in text
    (row,) = as_json(store, "ls", "--filter", "dtype=float16")["graphs"]
    assert (row["restores"], row["speedup"], row["to_eager"], row["in_use"]) == (1, 1.5, 1e-6, False)
    assert row["id"] in text
    del lease


def test_quarantined_graphs_are_shown_to_who_asks(store: Store, graphs: dict[str, Entry]) -> None:
    quarantine(store, graphs["small"].folder)
    assert len(as_json(store, "ls")["graphs"]) == 2
    (row,) = as_json(store, "ls", "--filter", "state=quarantined")["graphs"]
    assert row["reason"]["code"] == "quarantined"
    assert onegraph(store, "ls").stdout.splitlines()[-1].endswith("; 1 more quarantined or unreadable")
    assert "more" not in onegraph(store, "ls", "--filter", "dtype=float16").stdout.splitlines()[-1]
    assert onegraph(store, "stats").stdout.startswith("3 graphs (1 quarantined, 1 signed, 1 stale)")


def test_ls_all_includes_the_folders_that_are_known(store: Store, graphs: dict[str, Entry], tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "photo.safetensors").touch()
    publish(store, ModelSource(tmp_path / "models" / "photo.safetensors", "0123456789ab"))
    assert len(as_json(store, "ls")["graphs"]) == 3
    assert len(as_json(store, "ls", "--all")["graphs"]) == len(as_json(store, "ls", tmp_path / "models")["graphs"]) == 4
    assert as_json(store, "stats")["folders"] == [str(tmp_path / "models")]


def test_stats(store: Store, graphs: dict[str, Entry]) -> None:
    found = as_json(store, "stats")
    assert (found["graphs"], found["restores"], found["saved_seconds"]) == (3, 3, 3.0)
    assert found["states"] == {"signed": 2, "stale": 1}
    first = onegraph(store, "stats").stdout.splitlines()[0]
    assert first == "3 graphs (2 signed, 1 stale), 0 pinned"


def test_prune_tells_and_then_does(store: Store, graphs: dict[str, Entry]) -> None:
    dry = as_json(store, "prune", "--dry-run", "--budget", "100 KB")
    assert folders(dry["removed"]) == [graphs["old"].folder, graphs["small"].folder]
    assert all(entry.folder.exists() for entry in graphs.values())
    done = as_json(store, "prune", "--budget", "100KB")
    assert (done["removed"], done["bytes_after"]) == (dry["removed"], dry["bytes_after"])
    assert [entry.folder.exists() for entry in graphs.values()] == [False, True, False]


@needs_posix("under wine a folder goes although one of its files is open, which Windows refuses")
def test_prune_keeps_what_is_pinned_or_in_use(store: Store, graphs: dict[str, Entry]) -> None:
    pinned = as_json(store, "pin", "unknown")["pinned"]
    assert len(pinned) == 3
    assert as_json(store, "prune", "--budget", "1B", code=1)["removed"] == []
    assert len(as_json(store, "unpin", "unknown/fedcba987654")["unpinned"]) == 3
    lease = store.lease(graphs["old"])
    done = onegraph(store, "prune", "--budget", "1B")
    assert done.exit_code == 1
    assert f"in use   {graphs['old'].folder}\n" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("removed 2 graphs; ")
    del lease


def test_prune_unusable_leaves_the_rest(store: Store, graphs: dict[str, Entry]) -> None:
    done = onegraph(store, "prune", "--unusable")
    assert done.exit_code == 0
    assert [entry.folder.exists() for entry in graphs.values()] == [True, True, False]


def test_a_name_of_no_graph_is_told(store: Store, graphs: dict[str, Entry]) -> None:
    done = onegraph(store, "pin", "nothing")
    assert done.exit_code == 1 and done.stderr.startswith("Error: Nothing has the name nothing. ")
    assert len(as_json(store, "pin", "nothing", "unknown", code=1)["failed"]) == 1


@pytest.mark.parametrize("text", ["x", "10 XB", "-1", "1,5GiB"])
def test_what_is_no_size_is_refused(text: str, store: Store) -> None:
    assert onegraph(store, "prune", f"--budget={text}").exit_code == 2
    with pytest.raises(ValueError, match="no size"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("20GiB", 20 << 30), ("1.5 gib", 3 << 29), ("500MB", 5 * 10**8), ("7", 7 << 30), ("12B", 12), ("2T", 2 << 40),
     ("0", None), ("0 GiB", None)],
)  # fmt: skip
def test_sizes(text: str, count: int | None) -> None:
    assert parse(text) == count


def test_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, count in {"": DEFAULT, "nonsense": DEFAULT, "1GiB": 1 << 30, "0": None}.items():
        monkeypatch.setenv("ONEGRAPH_DISK_BUDGET", text)
        assert current(tmp_path).bytes == count


def test_doctor_tells_what_to_do(store: Store, graphs: dict[str, Entry]) -> None:
    quarantine(store, graphs["small"].folder)
    done = onegraph(store, "doctor", ONEGRAPH_DISK_BUDGET="nonsense")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    for text in ("1 graph of no use here any more", "1 graph quarantined"):
        assert lines[lines.index(text) + 1].startswith("  note: `onegraph")
    assert lines[-2].startswith("  problem: set ONEGRAPH_DISK_BUDGET")
    found = json.loads(onegraph(store, "doctor", "--json", ONEGRAPH_DISK_BUDGET="1B").stdout)["findings"]
    assert all(one["state"] in ("ok", "note", "problem") for one in found)
    (budget,) = [one for one in found if one["what"] == "budget"]
    assert "onegraph prune" in budget["remedy"]


@pytest.mark.parametrize("command", [["ls"], ["stats"], ["verify"], ["retry"], ["prune"], ["trust", "list"]])
def test_every_command_prints_one_json_document(command: list[str], store: Store) -> None:
    assert isinstance(as_json(store, *command), dict)


def test_there_is_completion_for_shells(store: Store) -> None:
    assert "--install-completion" in onegraph(store, "--help").stdout


def test_explain_and_bake_refuse_what_is_not_there(store: Store, tmp_path: Path) -> None:
    workflow = tmp_path / "workflow.json"
    workflow.write_text("{}")
    for arguments in (
        ["explain", tmp_path / "none.safetensors"], ["bake", tmp_path / "none.json"], ["bake", workflow],
        ["explain", workflow, "--comfyui", tmp_path],
    ):  # fmt: skip
        assert onegraph(store, *arguments, COMFYUI_PATH="").exit_code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "cannot be read as JSON"), ('{"nodes": []}', "No ComfyUI answers"), ("{}", "no workflow"),
     ('{"1": {"class_type": "KSampler", "inputs": {}}}', "no node of OneGraph")],
)  # fmt: skip
def test_bake_tells_what_is_no_workflow(text: str, told: str, store: Store, tmp_path: Path) -> None:
    workflow = tmp_path / "workflow.json"
    workflow.write_text(text)
    done = onegraph(store, "bake", workflow, "--server", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert told in done.stderr


@pytest.mark.parametrize(
    "command",
    [["ls"], ["stats"], ["verify"], ["prune", "--dry-run"], ["pin", "photo", "--in"], ["unpin", "photo", "--in"],
     ["export", "--to", "x.tar"], ["import", "--trust", "alice"], ["push", "file:///x"], ["explain"], ["bake"],
     ["bench", "--comfyui", "."]],
)  # fmt: skip
def test_a_path_that_does_not_exist_is_named(command: list[str], store: Store, tmp_path: Path) -> None:
    done = onegraph(store, *command, tmp_path / "typo")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"'{tmp_path / 'typo'}' does not exist" in done.stderr


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["prune"], ["pin", "photo", "--in"], ["export", "--to", "x"]])
def test_a_file_is_no_folder_of_graphs(command: list[str], store: Store, tmp_path: Path) -> None:
    (tmp_path / "photo.safetensors").touch()
    done = onegraph(store, *command, tmp_path / "photo.safetensors")
    assert done.exit_code == 2 and "photo.safetensors' is a file" in done.stderr


@pytest.mark.parametrize("command", ["explain", "bake", "bench"])
def test_an_empty_file_is_named(command: str, store: Store, tmp_path: Path) -> None:
    for name in ("photo.safetensors", "workflow.json"):
        (tmp_path / name).touch()
        done = onegraph(store, command, tmp_path / name, "--comfyui", tmp_path)
        assert done.exit_code == 2 and f"{tmp_path / name} is empty" in done.stderr


@pytest.fixture
def beside(store: Store, tmp_path: Path) -> dict[str, Entry]:
    """Graphs of two checkpoints of one name in two folders, beside which copies lie, and one of no known checkpoint."""
    entries = {}
    for name, digest in (("one", "0123456789ab"), ("two", "0123456789ab"), ("", "fedcba987654")):
        checkpoint = tmp_path / name / "photo.safetensors" if name else None
        if checkpoint is not None:
            checkpoint.parent.mkdir()
            checkpoint.touch()
        source = ModelSource(checkpoint, digest)
        entries[name] = publish(store, source, key(dtype=name or "float32"), content=bytes(50_000))
        store.note_use(entries[name], "compiled", source)
    return entries


def test_copies_beside_checkpoints_are_listed_and_pruned_where_they_are_asked_for(
    store: Store, beside: dict[str, Entry], tmp_path: Path
) -> None:
    found = as_json(store, "stats")
    assert (found["graphs"], found["copies"], len(found["folders"])) == (3, 2, 2)
    assert (found["bytes"] > 150_000, found["copies_bytes"] > 100_000) == (True, True)
    found = as_json(store, "stats", tmp_path / "one")
    assert (found["graphs"], found["copies"], found["folders"]) == (3, 1, [str(tmp_path / "one")])
    assert len(as_json(store, "ls")["graphs"]) == 3
    assert len(as_json(store, "ls", "--all")["graphs"]) == 5
    (row,) = [row for row in as_json(store, "ls", tmp_path / "one")["graphs"] if row["beside"]]
    assert row["model"] == "photo/0123456789ab" and row["folder"].startswith(str(tmp_path / "one"))
    assert "copy beside the checkpoint" in onegraph(store, "ls", "--long", tmp_path / "one").stdout
    (tmp_path / "two" / "photo.safetensors").unlink()  # of no use without it, perhaps
    store.disk.changed()
    assert as_json(store, "prune", "--beside", tmp_path / "one", "--budget", "1GiB")["removed"] == []
    (tmp_path / "one" / "photo.safetensors").unlink()
    for arguments in (["--dry-run"], []):
        done = as_json(store, "prune", "--beside", tmp_path / "one", *arguments)
        assert [Path(row["folder"]).is_relative_to(tmp_path / "one") for row in done["removed"]] == [True]
    done = as_json(store, "prune", "--beside", "--budget", "1B", code=0)
    assert len(done["removed"]) == 1 and not [*tmp_path.glob("*/photo.graphs")]
    assert len(as_json(store, "ls", "--all")["graphs"]) == 3


@pytest.mark.parametrize("name", ["photo", "photo/0123456789ab"])
def test_pin_and_unpin_change_the_graphs_of_a_folders_models(
    name: str, store: Store, beside: dict[str, Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_json(store, "pin", name, "--in", "two")["pinned"] == [str(beside["two"].folder)]
    assert len(as_json(store, "pin", name)["pinned"]) == 2
    assert as_json(store, "unpin", name, "--in", tmp_path / "one")["unpinned"] == [str(beside["one"].folder)]
    assert as_json(store, "pin", "unknown", "--in", "one", code=1)["pinned"] == []
    assert as_json(store, "pin", "unknown")["pinned"] == [str(beside[""].folder)]
    assert {one.path for one in store.disk.entries() if one.pinned} == {beside[""].folder, beside["two"].folder}


def test_ids_are_the_same_however_a_folder_is_named(
    store: Store, beside: dict[str, Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_name = {row["id"] for row in as_json(store, "ls", "one")["graphs"]}
    assert by_name < {row["id"] for row in as_json(store, "ls", "--all")["graphs"]}


def test_insert_writes_a_copy(store: Store, tmp_path: Path) -> None:
    loader = {"id": 1, "type": "UNETLoader", "outputs": [{"type": "MODEL", "links": [5]}], "inputs": []}
    sampler = {"id": 2, "type": "KSampler", "inputs": [{"name": "model", "type": "MODEL", "link": 5}]}
    workflow = tmp_path / "flow.json"
    workflow.write_text(text := json.dumps({"nodes": [loader, sampler], "links": [[5, 1, 0, 2, 0, "MODEL"]]}))
    done = onegraph(store, "insert", workflow)
    written = tmp_path / "flow.onegraph.json"
    assert (done.exit_code, workflow.read_text()) == (0, text)
    assert done.stdout == f"with Compile Model (OneGraph) after node 1 (UNETLoader): {written}\n"
    nodes = {node["id"]: node["type"] for node in json.loads(written.read_text())["nodes"]}
    assert nodes == {1: "UNETLoader", 2: "KSampler", 3: "OneGraphCompileModel"}
    assert as_json(store, "insert", written, code=1)["error"].startswith("flow.onegraph.json has a node of OneGraph")
    assert as_json(store, "insert", workflow, "--to", tmp_path / "none" / "x.json", code=1)["written"] == ""
    workflow.write_text("{}")
    assert "no workflow of the editor" in as_json(store, "insert", workflow, code=1)["error"]
