"""`python -m pytest` as a script, for processes that start as copies (`warm`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(pytest.main(sys.argv[1:]))
