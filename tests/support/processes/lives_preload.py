"""What the server of `support.processes.lives` imports before it forks."""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch  # noqa: F401

import onegraph.backends.inductor.backend
import onegraph.runtime.calls.dispatch  # noqa: F401
from support.models import toy  # noqa: F401
from support.processes import faults, lives  # noqa: F401

gc.freeze()  # what is imported is garbage in no fork, which so collects its own in no time
