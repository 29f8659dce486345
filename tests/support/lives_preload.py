"""What the server of `support.lives` imports before it forks."""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: F401

import onegraph.backends.inductor.backend
import onegraph.runtime.dispatch  # noqa: F401
from support import faults, lives, toy  # noqa: F401

gc.freeze()  # what is imported is garbage in no fork, which so collects its own in no time
