"""Run pytest with Windows' Python, from the repository's root: `run_pytest.py ROOT REPORT ARGUMENTS...`."""

from __future__ import annotations

import _winapi
import os
import sys

# With the name by which tests import it, before pytest may import the root's __init__.py by another.
import onegraph  # noqa: F401

if hasattr(_winapi, "CopyFile2"):  # wine 8 does not have what it calls; shutil then copies as elsewhere
    del _winapi.CopyFile2
os.chdir(sys.argv[1])
import pytest  # noqa: E402

sys.exit(pytest.main(["-p", "no:cacheprovider", f"--junitxml={sys.argv[2]}", *sys.argv[3:]]))
