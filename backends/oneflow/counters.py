"""What the backend did in this process; tests and reports read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Lowerings of a program to a job, and initialisations of a job's runtime."""

    traces: int = 0
    inits: int = 0


counters = Counters()
