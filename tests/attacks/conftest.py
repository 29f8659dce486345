from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from onegraph.graph_cache.model_hash import ModelSource


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def source() -> ModelSource:
    return ModelSource(None, "0123456789ab")
