"""All cases, in the order of the published table."""

from __future__ import annotations

from . import conditioning, patches, sampling, series, weights
from .case import Case

CASES: tuple[Case, ...] = (*weights.CASES, *conditioning.CASES, *patches.CASES, *sampling.CASES, *series.CASES)
