"""Tensors without their values, and zeros in their place."""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from onegraph.common.tensor_meta import TensorMeta
from onegraph.common.zeros import zeros


def test_what_code_relies_on_is_described() -> None:
    meta = TensorMeta.of("a.weight", torch.empty(4, 6, dtype=torch.float16).t())
    assert meta == TensorMeta("a.weight", (6, 4), (1, 6), "float16")
    assert meta.torch_dtype is torch.float16


def test_it_is_the_same_after_json() -> None:
    meta = TensorMeta("a.weight", (6, 4), (1, 6), "bfloat16")
    assert TensorMeta.from_json(json.loads(json.dumps(meta.to_json()))) == meta


def test_describing_needs_no_torch() -> None:
    """The graph store reads manifests where torch is slow to import, as in the command line."""
    script = "import sys; import onegraph.graph_cache.manifest; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_zeros_have_the_layout_they_stand_for() -> None:
    metas = [TensorMeta("a", (6, 4), (1, 6), "float16"), TensorMeta("none", (0, 3), (3, 1), "float32")]
    made = zeros(metas, torch.device("cpu"))
    assert [TensorMeta.of(name, tensor) for name, tensor in made.items()] == metas
    assert not any(tensor.any() for tensor in made.values())
