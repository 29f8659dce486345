"""The `onegraph` command, as a user runs it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.store.command import onegraph
from support.store.entries import key, new_entry, publish

from onegraph.cli.output import NO_GRAPHS
from onegraph.common.reasons import BlockSmall, CompileFailed, WrongSignature
from onegraph.common.stored_reasons import to_json
from onegraph.common.version import __version__
from onegraph.graph_cache import integrity
from onegraph.graph_cache.entry import Entry
from onegraph.graph_cache.first_use_results import FirstUse
from onegraph.graph_cache.machine_notes import Failure
from onegraph.graph_cache.model_hash import ModelSource
from onegraph.graph_cache.store import Store


@pytest.fixture
def checkpoint(tmp_path: Path) -> ModelSource:
    (tmp_path / "models").mkdir()
    return ModelSource(tmp_path / "models" / "photo.safetensors", "0123456789ab")


def test_the_command_runs_as_installed(store: Store) -> None:
    command = [sys.executable, "-c", "from onegraph.cli import main; main()", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("ls", "verify", "import", "bench", "doctor"))


def test_the_version_and_short_help(store: Store) -> None:
    for option in ("--version", "-V"):
        assert onegraph(store, option).output == f"onegraph {__version__}\n"
    for command in ((), ("verify",), ("trust", "list")):
        shown = onegraph(store, *command, "-h")
        assert shown.exit_code == 0 and shown.output == onegraph(store, *command, "--help").output != ""


def test_verify_of_an_empty_store(store: Store) -> None:
    done = onegraph(store, "verify")
    assert (done.exit_code, done.output) == (0, f"{NO_GRAPHS}\nLooked in {store.home}\n")


def test_doctor_tells_which_comfyui(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "comfyui_version.py").write_text('__version__ = "1.2.3"\n')
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path))
    assert f"ComfyUI 1.2.3 in {tmp_path}" in onegraph(store, "doctor").stdout.splitlines()


def test_ls_of_an_empty_store(store: Store) -> None:
    done = onegraph(store, "ls")
    assert done.exit_code == 0
    assert done.stdout == f"{NO_GRAPHS}\nLooked in {store.home}\n"
    assert not store.home.exists()


def test_ls_shows_what_is_known_of_a_graph(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    unused = publish(store, checkpoint, key(dtype="float16"), content=bytes(1_500_000))
    store.note_use(unused, "compiled", checkpoint)
    used = publish(store, ModelSource(None, "fedcba987654"))
    store.note_use(used, "compiled", ModelSource(None, "fedcba987654"))
    store.remember(used, FirstUse(checked={"1": 1e-6, "n": 2e-6}, eager_ms=3.0, compiled_ms=2.0))
    done = onegraph(store, "ls")
    lines = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in done.stdout.splitlines()]
    shapes, measured, unmeasured = "any size 512-2048", ("2.0e-06", "1.5x faster"), ("not used yet", "")
    assert ["unknown/fedcba987654", "unet", shapes, "float32", "inductor", "0.0 MiB", *measured, "signed"] in lines
    assert ["photo/0123456789ab", "unet", shapes, "float16", "inductor", "1.4 MiB", *unmeasured, "signed"] in lines
    assert done.stdout.splitlines()[-1].startswith("2 graphs, 1.4 MiB; graph folder ")


@pytest.mark.parametrize("label", ["[/red] 64", "[bold]64[/bold]", "64\\"])
def test_ls_shows_markup_as_it_is(label: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "[b]").mkdir()
    source = ModelSource(tmp_path / "[b]" / "my [model].safetensors", "0123456789ab")
    store.note_use(publish(store, source, new=new_entry(label)), "compiled", source)
    done = onegraph(store, "ls", tmp_path / "[b]")
    assert done.exit_code == 0
    assert f" {label} " in done.stdout
    assert "my [model]/0123456789ab" in done.stdout


def test_ls_survives_a_key_without_its_fields(store: Store) -> None:
    manifest = publish(store, ModelSource(None, "fedcba987654")).folder / "manifest.json"
    entry = next(store.entries())
    manifest.write_text(entry.manifest.model_copy(update={"key": {}}).model_dump_json())
    assert "1 graph, " in onegraph(store, "ls").stdout


def test_verify_finds_all_sound(store: Store, checkpoint: ModelSource, tmp_path: Path) -> None:
    entry = publish(store, checkpoint)
    done = onegraph(store, "verify", tmp_path / "models")
    assert (done.exit_code, done.stdout) == (0, f"sound  {entry.folder}\n")


def test_verify_names_each_damaged_graph(store: Store) -> None:
    folders = {dtype: publish(store, ModelSource(None, "fedcba987654"), key(dtype=dtype)).folder for dtype in "abc"}
    (folders["a"] / "graph.aoti").write_bytes(b"")
    (folders["b"] / "manifest.json").write_text("{")
    done = onegraph(store, "verify", columns=40)  # lines stay whole: scripts read them
    assert done.exit_code == 1
    first, second, third = done.stdout.splitlines()
    assert first == f"damaged: its file graph.aoti has 0 bytes instead of 4  {folders['a']}"
    assert second.startswith("damaged: its manifest cannot be read (") and second.endswith(f"  {folders['b']}")
    assert third == f"sound  {folders['c']}"
    assert (folders["a"] / "graph.aoti").exists()  # it only reports


def test_verify_tells_unreadable_from_damaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = publish(store, ModelSource(None, "fedcba987654")).folder
    monkeypatch.setattr(integrity, "is_same", mock.Mock(side_effect=OSError(5, "Input/output error")))
    done = onegraph(store, "verify")
    assert done.exit_code == 1
    sentence = "the cached graph's file graph.aoti cannot be read at the moment ([Errno 5] Input/output error)"
    assert done.stdout == f"unreadable: {sentence}  {folder}\n"


def unsigned(store: Store, model: str) -> Entry:
    """An entry that nobody signed."""
    entry = publish(store, ModelSource(None, model))
    (entry.folder / "signature.json").unlink()
    return entry


def test_ls_and_verify_tell_what_is_not_trusted(store: Store) -> None:
    bare = unsigned(store, "aaaaaaaaaaaa").folder
    changed = publish(store, ModelSource(None, "cccccccccccc")).folder
    (changed / "manifest.json").write_bytes((changed / "manifest.json").read_bytes() + b"\n")
    done = onegraph(store, "ls")
    assert all(f" {state}\n" in done.stdout for state in ("unsigned", "wrong signature"))
    done = onegraph(store, "verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"not trusted: the cached graph has no signature  {bare}",
        f"not trusted: {WrongSignature().text}  {changed}",
    ]


def test_doctor_lists_every_backend(store: Store) -> None:
    done = onegraph(store, "doctor")
    pack, python, *lines = [line for line in done.stdout.splitlines() if not line.startswith("ComfyUI ")]
    assert pack.startswith(f"OneGraph {__version__} in {Path(__file__).anchor}") and python.startswith(
        f"Python {platform.python_version()} on "
    )
    assert lines[0] == f"torch {torch.__version__}"
    assert lines[1].startswith("C++ compiler: /" if os.name == "posix" else "C++ compiler: none")
    assert f"Graph folder: {store.home}" in lines
    assert os.name != "posix" or lines[-1].startswith("Models can be compiled and graphs loaded here, for cpu")
    for backend in ("inductor", "oneflow"):
        assert any(line.startswith(f"{backend} on cpu: runs graphs: ") and "; compiles: " in line for line in lines)


def test_doctor_names_no_block_that_is_too_small(store: Store) -> None:
    failures = [Failure(kind="facts", reason=to_json(one)) for one in (CompileFailed("No."), BlockSmall("Small."))]
    store.notes.note_failures(key(), "any size", tuple(failures))
    lines = [line for line in onegraph(store, "doctor").stdout.splitlines() if line.startswith("not compiled: ")]
    assert lines == ["not compiled: unet, any size: No."]


def test_bench_refuses_what_is_not_there(store: Store, tmp_path: Path) -> None:
    for arguments in (["x.safetensors", "--size", "big"], ["x.safetensors", "--backends", "tvm"], ["x.safetensors"]):
        done = onegraph(store, "bench", *arguments, "--comfyui", tmp_path)
        assert done.exit_code == 2


def test_retry_tells_what_it_forgets(store: Store) -> None:
    failed = Failure(kind="facts", reason=to_json(CompileFailed("The compiler said no.")))
    later = Failure(kind="facts", reason={"code": "of_a_later_version"})
    store.notes.note_failures(key(), "any size [red]", (failed, later))
    assert onegraph(store, "retry").output.splitlines() == [
        "unet, any size [red]: The compiler said no.",
        "unet, any size [red]: of another version of OneGraph",
        "2 failed compiles forgotten; the next run tries again",
    ]
    assert store.notes.failures(key()) == ()
    assert onegraph(store, "retry").output.splitlines() == ["No compile failed. Nothing is to be tried again."]


@pytest.mark.parametrize("command", [["ls"], ["verify"], ["trust", "list"], ["retry"]])
def test_commands_on_files_load_no_torch(command: list[str], store: Store) -> None:
    """It takes seconds and hundreds of megabytes."""
    publish(store, ModelSource(None, "fedcba987654"))
    program = (
        "import sys\nfrom onegraph.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print(sorted({'torch', 'numpy', 'sympy'} & set(sys.modules)))"
    )
    environment = {**os.environ, "ONEGRAPH_HOME": str(store.home)}
    done = subprocess.run(
        [sys.executable, "-c", program, *command], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_file_is_taken_and_an_empty_one_refused(store: Store, tmp_path: Path) -> None:
    given = tmp_path / "workflow.json"
    given.write_text("{}")
    assert onegraph(store, "insert", given).exit_code == 1  # it was read: nothing in it loads a model
    given.write_text("")
    done = onegraph(store, "insert", given)
    assert done.exit_code == 2 and "is empty" in done.output


def test_a_workflow_may_be_a_template_of_comfyuis(store: Store) -> None:
    pytest.importorskip("comfyui_workflow_templates", reason="ComfyUI's templates are not installed")
    for name, said in (("image_z_image_turbo", "is not known"), ("no_such", "does not exist")):
        done = onegraph(store, "bake", name, "--target", "sm_1")
        assert done.exit_code == 2 and said in done.output


@pytest.mark.parametrize("command", ["explain", "bake", "insert", "bench", "verify", "import"])
def test_what_no_file_can_be_named_is_not_there(command: str, store: Store) -> None:
    done = onegraph(store, command, 300 * "a")
    assert done.exit_code == 2 and "does not exist" in " ".join(done.output.split())
