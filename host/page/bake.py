"""Bake a workflow: POST bake begins, GET bake/{job} tells how far it is, POST bake/{job}/cancel ends it."""

from __future__ import annotations

from ...common import reasons
from ..comfyui import contract
from ..comfyui.host_routes import NodeTypes
from ..jobs.trial_runs import JobError
from . import workflows
from .answers import OfJob, Refusal
from .baking import BakeProgress, jobs
from .models import QueuedJob, Workflow


def begin(asked: Workflow) -> QueuedJob | Refusal:
    """POST bake: queue the workflow as `onegraph bake` does."""
    lacking = contract.refusal("baking")
    if lacking is not None:
        return Refusal(501, lacking)
    try:
        prompt, _ = workflows.prompt_of(asked.prompt, NodeTypes())
    except JobError as error:
        return workflows.refused(error)
    job = jobs.add(prompt)
    return Refusal(429, reasons.TooManyJobs()) if job is None else QueuedJob(job=job.job)


def read(asked: OfJob) -> BakeProgress | Refusal:
    """GET bake/{job}."""
    return _told(jobs.get(asked.job))


def cancel(asked: OfJob) -> BakeProgress | Refusal:
    """POST bake/{job}/cancel."""
    return _told(jobs.cancel(asked.job))


def _told(job: BakeProgress | None) -> BakeProgress | Refusal:
    return job or Refusal(404, reasons.UnknownJob())
