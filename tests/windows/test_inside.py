"""The unit tests of the graph cache and of the commands, and those for Windows alone, by Windows' own pytest."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from support.windows.absent import LACKING
from windows_env import ROOT, windows_path, windows_python

FOLDERS = ("tests/windows/inside", "tests/unit/graph_cache", "tests/unit/cli")
LEAST = 640  # that run and pass
# Why a test is skipped there, by how its reason begins. Nothing else is left out.
REASONS = (
    *LACKING.values(),
    "Windows copies no process",
    "Windows takes no control characters in names",
    "Windows' files have no modes",
    "Windows' folders have no",
    "Windows' Python has no sockets among files",
    "a user of Windows has a profile",
    "on Windows no variable names the folder for settings",
    "paths and addresses of files are others there",
    "only root can be two users",
    "the Hub's cache is of links",
    "this user may make no symbolic links",
    "under wine a folder goes although one of its files is open",
    "wine 8 makes no junctions",
    "ComfyUI's templates are not installed",
    "no fork",
    "names are short on Windows",
    *(f"could not import '{name}'" for name in ("boto3", "fcntl", "numpy", "ray", "venv")),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[ElementTree.Element]:
    report = tmp_path_factory.mktemp("report") / "report.xml"
    script = ROOT / "tests" / "support" / "windows" / "run_pytest.py"
    words = [*map(windows_path, (script, ROOT, report)), "-q", "-m", "not full", *FOLDERS]
    done = windows_python(*words)
    assert report.exists(), (done.stdout + done.stderr).decode(errors="replace")[-3000:]
    return [*ElementTree.parse(report).getroot().iter("testcase")]


def test_all_pass(cases: list[ElementTree.Element]) -> None:
    wrong = {
        f"{case.get('classname')}.{case.get('name')}": (found.get("message") or "")[:300]
        for case in cases
        for found in (case.find("failure"), case.find("error"))
        if found is not None
    }
    assert wrong == {}
    assert sum(case.find("skipped") is None for case in cases) >= LEAST


def test_what_is_skipped_says_why(cases: list[ElementTree.Element]) -> None:
    """And for no other reason than those that were looked at."""
    skipped = [found for case in cases if (found := case.find("skipped")) is not None]
    # Of a module's, the text has the reason.
    texts = [one.get("message") if one.get("message") != "collection skipped" else one.text for one in skipped]
    reasons = Counter((text or "").partition("Skipped: ")[2] or text or "" for text in texts)
    assert {reason: count for reason, count in reasons.items() if not reason.startswith(REASONS)} == {}
    assert {reason for reason in REASONS if not any(found.startswith(reason) for found in reasons)} == set()


def test_each_folder_has_tests(cases: list[ElementTree.Element]) -> None:
    for folder in map(Path, FOLDERS):
        assert sum((case.get("classname") or "").startswith(".".join(folder.parts)) for case in cases) > 10, folder
