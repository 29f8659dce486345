"""What is published, and what the registry reads of it."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import logo
import numpy as np
import pytest
import release
import yaml
from PIL import Image

import onegraph

ROOT = Path(__file__).parents[2]
DEVELOPMENT = (".ci", ".github", "benchmarks", "examples", "requirements", "tests", "tools")
PYPROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def published() -> list[str]:
    return release.files()


def field(name: str) -> str:
    """A field of pyproject.toml; Python 3.10 reads no TOML by itself."""
    found = re.search(rf'^{name} = "?(.*?)"?(?:  #.*)?$', PYPROJECT, re.MULTILINE)
    assert found is not None, name
    return found[1]


def test_development_is_not_published(published: list[str]) -> None:
    assert not [name for name in published if name.split("/")[0] in DEVELOPMENT]
    assert not [name for name in published if name.startswith(("docs/pictures/", "build/", ".venv"))]
    assert not [name for name in published if name.startswith(".")]


def test_all_that_runs_is_published(published: list[str]) -> None:
    listed = re.findall(r'^    "onegraph\.?([\w.]*)",$', PYPROJECT, re.MULTILINE)
    for folder in (name.replace(".", "/") for name in listed):
        for path in (ROOT / folder).glob("*.py"):
            assert path.relative_to(ROOT).as_posix() in published
    for needed in ("pyproject.toml", "requirements.txt", "LICENSE", "README.md", "cli/report/page.html.j2", "py.typed"):
        assert needed in published
    for folder in ("web", "locales", "example_workflows", "subgraphs"):
        there = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert there and there <= {*published}, folder


def test_an_archive_holds_what_git_tracks(tmp_path: Path) -> None:
    """Never what lies about, nor what is deleted; patterns of .comfyignore are git's."""
    for name in ("a.py", "tests/t.py", "docs/tests/kept.md", "secret.txt", "gone.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".comfyignore").write_text("# a comment\n/tests/\n/.comfyignore\n")
    for command in (["init", "-q"], ["add", "a.py", "tests", "docs", "gone.py", ".comfyignore"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "gone.py").unlink()
    assert release.files(tmp_path) == ["a.py", "docs/tests/kept.md"]


def test_a_tag_is_published_only_as_its_version(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('version = "1.2.3"\n')
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3] - 2026-12-01\n")
    assert release.troubles("v1.2.3", tmp_path) == []
    assert "The tag v1.2.4 is not v1.2.3" in release.troubles("v1.2.4", tmp_path)[0]
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3] - unreleased\n")
    (tmp_path / "common" / "version.py").write_text('__version__ = "1.2.2"\n')
    assert len(release.troubles("v1.2.3", tmp_path)) == 2


def test_the_name_is_one_that_the_registry_takes() -> None:
    """Letters, digits, and single special characters between them; not ComfyUI's own name."""
    assert re.fullmatch(r"[a-z]+(?:[-_.]?[a-z0-9]+)*", field("name")) and len(field("name")) < 100
    assert "comfy" not in field("name").lower()
    assert re.fullmatch(r"\d+\.\d+\.\d+", field("version"))
    assert re.fullmatch(r"[\w-]+", field("PublisherId")) and field("DisplayName") == "OneGraph"
    assert re.fullmatch(r">=\d+\.\d+\.\d+", field("requires-comfyui"))
    assert field("requires-comfyui").removeprefix(">=").removesuffix(".0") in (ROOT / "README.md").read_text()


def test_the_web_folder_is_named_once() -> None:
    """ComfyUI serves it for `web` in pyproject.toml and for WEB_DIRECTORY, by two names, and runs each script twice."""
    section = PYPROJECT.split("[tool.comfy]")[1].split("\n[")[0]
    assert not re.search(r"^web\b", section, re.MULTILINE)
    assert onegraph.WEB_DIRECTORY == "web" and (ROOT / onegraph.WEB_DIRECTORY / "js").is_dir()


@pytest.mark.parametrize(("name", "size"), [("Icon", (400, 400)), ("Banner", (1260, 540))])
def test_icon_and_banner_are_as_drawn(name: str, size: tuple[int, int]) -> None:
    address = field(name)
    assert address.startswith("https://raw.githubusercontent.com/onegraph/ComfyUI-OneGraph/main/")
    file = ROOT / address.partition("/main/")[2]
    drawn = {"Icon": logo.icon, "Banner": logo.banner}[name]().convert("RGB")
    there = Image.open(io.BytesIO(file.read_bytes()))
    assert there.size == drawn.size == size and file.stat().st_size < 200_000
    # Versions of Pillow smooth a little differently.
    difference = np.abs(np.asarray(there.convert("RGB")).astype(int) - np.asarray(drawn).astype(int))
    assert difference.mean() < 1.0


def test_a_version_is_published_after_all_tests_only() -> None:
    folder = ROOT / ".github" / "workflows"
    jobs = yaml.safe_load((folder / "publish.yml").read_text())["jobs"]
    assert jobs["publish"]["needs"] == "test" and jobs["test"]["needs"] == "check"
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    steps = yaml.safe_load((folder / "test.yml").read_text())["jobs"]["test"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]  # which runs `make test`, servers of ComfyUI included
    token = jobs["publish"]["steps"][-1]["with"]["personal_access_token"]
    assert token == "${{ secrets.REGISTRY_ACCESS_TOKEN }}"
    assert "REGISTRY_ACCESS_TOKEN" in (ROOT / "docs" / "releasing.md").read_text()
