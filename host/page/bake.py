"""Bake a workflow: POST bake begins, GET bake/{job} tells how far it is, POST bake/{job}/cancel ends it."""

from __future__ import annotations

from ...common import reasons
from ..comfyui import contract
from ..jobs.trial_runs import JobError, checked, nodes_of_ours
from .answers import OfJob, Refusal
from .baking import BakeProgress, jobs
from .models import BakeJob, QueuedJob, Workflow


def begin(asked: Workflow) -> QueuedJob | Refusal:
    """POST bake: queue the workflow as `onegraph bake` does."""
    lacking = contract.refusal("baking")
    if lacking is not None:
        return Refusal(501, lacking)
    try:
        prompt = checked(asked.prompt, "What was sent")
    except JobError as error:
        return Refusal(400, reasons.WorkflowRefused(str(error)))
    if not nodes_of_ours(prompt):
        return Refusal(400, reasons.WorkflowRefused("The workflow has no node of OneGraph."))
    job = jobs.add(prompt)
    return Refusal(429, reasons.TooManyJobs()) if job is None else QueuedJob(job=job.job)


def read(asked: OfJob) -> BakeJob | Refusal:
    """GET bake/{job}."""
    return _told(jobs.get(asked.job))


def cancel(asked: OfJob) -> BakeJob | Refusal:
    """POST bake/{job}/cancel."""
    return _told(jobs.cancel(asked.job))


def _told(job: BakeProgress | None) -> BakeJob | Refusal:
    return Refusal(404, reasons.UnknownJob()) if job is None else BakeJob(**vars(job))
