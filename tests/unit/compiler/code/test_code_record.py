"""What a capture records of the functions that it ran."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from support.edits import edited_host
from support.edits.edited_host import RULES, record_of

from onegraph.common.code_digest import source_digest
from onegraph.common.errors import CaptureError
from onegraph.compiler.code import code_record
from onegraph.graph_cache.manifest import CodeRecord


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ModuleType]:
    with edited_host.imported(tmp_path) as module:
        yield module


def test_only_functions_that_ran_are_recorded(host: ModuleType) -> None:
    record = record_of(host)
    own = {name.partition(":")[2] for name in record.functions if name.startswith("edited_host")}
    assert own >= {"scaled", "wrapped", "fast", "Base.helper", "Base.still", "M.forward"}
    assert not own & {"unused", "slow"}
    assert "torch.nn.modules.conv:Conv1d._conv_forward" in record.functions
    assert record.references["edited_host.model:F.gelu"].startswith("builtin")
    assert not any("math" in name for name in record.references)
    assert record.methods["edited_host.model:M.helper"] == "edited_host.model:Base"
    assert CodeRecord.model_validate_json(record.model_dump_json()) == record


def test_unfindable_functions_are_refused(host: ModuleType) -> None:
    module = host.M()
    with pytest.raises(CaptureError, match="could not be recorded"):
        code_record.record(set(), module, RULES)


def test_equal_code_of_two_files_is_recorded_twice(tmp_path: Path) -> None:
    """To Python they are one; what replaces the second one changes the model as well."""
    package = tmp_path / "twice_written"
    package.mkdir()
    for name in ("one", "other"):
        (package / f"{name}.py").write_text("def scaled(x):\n    return 2 * x\n")
    (package / "__init__.py").write_text(
        "import torch\nfrom . import one, other\n"
        "class M(torch.nn.Module):\n    def forward(self, x):\n        return other.scaled(one.scaled(x))\n"
    )
    with pytest.MonkeyPatch.context() as patching:
        patching.syspath_prepend(tmp_path)
        host = importlib.import_module("twice_written")
        try:
            record = record_of(host)
        finally:
            for name in ("", ".one", ".other"):
                del sys.modules[f"twice_written{name}"]
    assert host.one.scaled.__code__ == host.other.scaled.__code__
    assert record.functions.keys() >= {"twice_written.one:scaled", "twice_written.other:scaled"}


def test_a_set_has_one_digest_in_every_process(tmp_path: Path) -> None:
    script = (
        "from onegraph.common.code_digest import bytecode_digest\n"
        "def f(x): return x in {'a', 'bc', 'def', 'ghij', 'klmno'}\n"
        "print(bytecode_digest(f))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(digests) == 1


SAYS = "def f(x: int, *, scale: float = 2.0) -> int:\n    y: int = x * scale\n    return lambda z: y + z\n"
SAME = (
    'def f(x, *, scale=2.0):\n    """What it is."""\n\n    # why\n    y = (x * scale)\n    return lambda z: y + z\n',
    "def f(x: 'Tensor | None', *, scale: 'float'=2.0):\n  y = x * \\\n     scale\n  return (lambda z: y + z)\n",
)
OTHER = (
    SAYS.replace("x * scale", "x + scale"),
    SAYS.replace("2.0", "2"),
    SAYS.replace("y + z", "z + y"),
    SAYS.replace("return", "x = None; return"),
    SAYS.replace("*, scale", "scale"),
)


def test_the_digest_of_a_source_is_of_what_it_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(text: str) -> str:
        name = f"says_{abs(hash(text))}"
        (tmp_path / f"{name}.py").write_text(text)
        function = importlib.import_module(name).f
        function.__globals__["__name__"] = "says"
        return source_digest(function)

    monkeypatch.syspath_prepend(tmp_path)
    wanted = digest(SAYS)
    assert [digest(text) for text in SAME] == [wanted] * len(SAME)
    assert wanted not in [digest(text) for text in OTHER]
