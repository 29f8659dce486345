"""Jobs and messages arrive in the other process as they were sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.models import toy

from onegraph.common.tensor_meta import TensorMeta
from onegraph.compiler.process.job import (
    Checked,
    ClientModule,
    Done,
    Failed,
    Job,
    Message,
    Regions,
    Stage,
    from_json,
    read_job,
    to_json,
    write_job,
)
from onegraph.graph_cache.manifest import CodeRecord

WEIGHT = TensorMeta("mix.weight", (8, 8), (1, 8), "float16")
CODE = CodeRecord(python="3.10", functions={"a:f": ("1", "2")}, references={}, methods={})


@pytest.mark.parametrize(
    "message",
    [
        Stage("capturing"),
        Regions({"region0.aoti": 3.0}),
        Checked(("graph.aoti",), (WEIGHT,), CODE, outputs=11),
        Done(("graph.aoti",), (), None, cuda_graphs=True),
        Failed("No room.", lasting=False, cause="memory"),
    ],
)
def test_messages_arrive_as_they_were_sent(message: Message) -> None:
    assert from_json(json.loads(json.dumps(to_json(message)))) == message


@pytest.mark.parametrize("line", ["3", "{}", '{"event": "parted"}', '{"event": "stage"}', '{"event": "done"}'])
def test_what_is_no_message_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="no message"):
        from_json(json.loads(line))


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_job_arrives_as_it_was_ordered(rebuilt: bool, tmp_path: Path) -> None:
    job = Job(
        component="toy",
        backend="oneflow",
        device="cpu",
        shapes=toy.shapes(),
        export_shapes=toy.shapes(multiple=4),
        example_sizes={"batch": 2},
        skeleton=b"" if rebuilt else b"\x80",
        client=ClientModule(".host.capture.compile_client", {"args": {"cpu": True, "preview": None}}),
        niceness=10,
        rebuild_from=tmp_path / "graph" if rebuilt else None,
        constants=(WEIGHT,) if rebuilt else (),
        workers=3,
        cache=None if rebuilt else tmp_path / "cache",
    )
    write_job(job, tmp_path)
    assert read_job(tmp_path) == (job, [path for path in sys.path if path])


def test_a_job_is_read_without_torch_and_pydantic() -> None:
    script = (
        "import sys, onegraph.compiler.process.job; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
