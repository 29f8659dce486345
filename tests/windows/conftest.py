"""Windows' Python under wine, made once; without wine every test of the layer is skipped, and says what to install."""

from __future__ import annotations

import pytest
import windows_env


@pytest.fixture(scope="session", autouse=True)
def _windows() -> None:
    lacking = windows_env.missing()
    if lacking:
        pytest.skip(lacking)
    windows_env.set_up()
