"""The format of the manifest, which older and newer versions of the pack read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from onegraph.common.tensor_meta import TensorMeta
from onegraph.graph_cache.manifest import Manifest

FILE = {"bytes": 3, "blake3": 64 * "0"}
WEIGHT = {"name": "out.bias", "shape": [4, 2], "stride": [2, 1], "dtype": "float16"}


def written(**changed: Any) -> str:
    """As versions before the field `cuda_graphs` wrote it."""
    manifest = {
        "version": 1, "key": {}, "label": "64x64", "files": {"graph.aoti": FILE}, "constants": [WEIGHT], "code": None,
        "compile_seconds": 1.0, "created": "", "made_by": "0.1.0",
    }  # fmt: skip
    return json.dumps({**manifest, **changed})


def test_a_weight_is_the_same_after_a_file() -> None:
    read = Manifest.model_validate_json(written())
    assert read.constants == (TensorMeta("out.bias", (4, 2), (2, 1), "float16"),)
    again = json.loads(read.model_dump_json())
    assert again["constants"] == [WEIGHT]
    assert Manifest.model_validate(again) == read


@pytest.mark.parametrize("wrong", [{"shape": ["x"]}, {"more": 1}, {"dtype": None}])
def test_a_weight_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Manifest.model_validate_json(written(constants=[{**WEIGHT, **wrong}]))


def test_a_manifest_without_outputs_is_of_one() -> None:
    assert Manifest.model_validate_json(written()).outputs == 1
    assert Manifest.model_validate_json(written(outputs=11)).outputs == 11
    with pytest.raises(ValidationError):
        Manifest.model_validate_json(written(outputs=0))


def test_older_entries_tell_of_cuda_graphs_by_a_file() -> None:
    assert not Manifest.model_validate_json(written()).cuda_graphs
    assert Manifest.model_validate_json(written(files={"graph.aoti": FILE, "replays": FILE})).cuda_graphs
    read = Manifest.model_validate_json(written(cuda_graphs=True))
    assert read.cuda_graphs
    assert Manifest.model_validate_json(read.model_dump_json()).cuda_graphs
