"""Bake a workflow: POST bake begins, GET bake/{job} tells how far it is, POST bake/{job}/cancel ends it."""

from __future__ import annotations

from ...common import reasons
from ..comfyui import contract
from ..comfyui.host_routes import NodeTypes
from ..jobs.trial_runs import JobError
from . import workflows
from .answers import JobRequest, Refusal
from .baking import BakeProgress, jobs
from .models import QueuedJob, Workflow

_UNKNOWN = Refusal(404, reasons.UnknownJob())


def begin(fields: Workflow) -> QueuedJob | Refusal:
    """POST bake: queue the workflow as `onegraph bake` does."""
    lacking = contract.refusal("baking")
    if lacking is not None:
        return Refusal(501, lacking)
    try:
        prompt, _ = workflows.prompt_of(fields.prompt, NodeTypes())
    except JobError as error:
        return workflows.refused(error)
    job = jobs.add(prompt)
    return Refusal(429, reasons.TooManyJobs()) if job is None else QueuedJob(job=job.job)


def read(fields: JobRequest) -> BakeProgress | Refusal:
    """GET bake/{job}: how far it is."""
    return jobs.get(fields.job) or _UNKNOWN


def cancel(fields: JobRequest) -> BakeProgress | Refusal:
    """POST bake/{job}/cancel: end the job; what it compiled stays."""
    return jobs.cancel(fields.job) or _UNKNOWN
