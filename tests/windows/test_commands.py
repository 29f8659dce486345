"""The pack is imported by Windows' Python, and its commands print into a pipe of code page 1252."""

from __future__ import annotations

import json

from support.windows.wine import facts
from windows_env import windows_python


def test_the_pack_is_imported() -> None:
    found = facts("import_pack.py")
    assert (found["system"], found["encoding"], found["failed"]) == ("nt", "cp1252", {})
    assert found["modules"] > 100
    assert found["compiles"] == "loads_only" and found["runs"] is True


def test_commands_print_into_a_pipe() -> None:
    for words in (("--help",), ("ls",), ("verify",), ("stats",), ("trust", "list")):
        done = windows_python("-m", "onegraph.cli", *words)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
        assert done.stdout


def test_doctor_has_no_problem_with_loading_alone() -> None:
    done = windows_python("-m", "onegraph.cli", "doctor", "--json")
    assert done.returncode == 0, done.stdout
    states = {one["what"]: one["state"] for one in json.loads(done.stdout)["findings"]}
    assert states["torch"] == "ok" and states["inductor cpu"] == "note"
    assert "problem" not in states.values()
