"""Makes tests/support importable, here and in the compiling processes that tests start, which share one cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# What compiles share, as one user's do; tests whose stores are empty would each probe the CPU and compile the runtime.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "test" / "inductor"))
