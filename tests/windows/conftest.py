"""Windows' Python under wine, made once; without wine every test of the layer is skipped, and says what to install.

`inside` has tests that Windows' pytest runs; `test_inside.py` has it do so.
"""

from __future__ import annotations

import os

import pytest
import windows_env

collect_ignore = ["inside"] if os.name == "posix" else []


@pytest.fixture(scope="session", autouse=True)
def _windows() -> None:
    if os.name == "posix":
        lacking = windows_env.missing()
        if lacking:
            pytest.skip(lacking)
        windows_env.set_up()
