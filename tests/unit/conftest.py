from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch

# On a busy machine any test may take longer than a deadline.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
