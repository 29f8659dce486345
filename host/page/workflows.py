"""Workflows that a client sends, in either format: put the node into one, tell what models one samples."""

from __future__ import annotations

import json
from typing import Any

from ...common import reasons
from ..comfyui import contract
from ..comfyui.host_routes import NodeTypes
from ..jobs import editor_workflow, inserting
from ..jobs.model_facts import facts
from ..jobs.sampled_models import sampled_models
from ..jobs.trial_runs import CannotTellError, JobError, Prompt, checked, nodes_of_ours
from .answers import Refusal, Text
from .models import EditorWorkflow, ExplainedWorkflow, Workflow

_SENT = "The workflow"


def insert(fields: EditorWorkflow) -> Text | Refusal:
    """POST insert: the workflow with Compile Model, as it is put into ComfyUI's editor."""
    try:
        made, after = inserting.inserted(fields.workflow, _SENT)
    except JobError as error:
        return Refusal(400, reasons.WorkflowRefused(str(error)))
    if not after:
        return Refusal(400, reasons.NothingInserted())
    # As text: what a user wrote into a workflow stays as it is, paths too.
    return Text(json.dumps({"workflow": made, "after": after}), "application/json")


def explain(fields: Workflow) -> ExplainedWorkflow | Refusal:
    """POST explain: the models that a workflow samples, by the headers of their files."""
    lacking = contract.refusal("headers")
    if lacking is not None:
        return Refusal(501, lacking)
    types = NodeTypes()
    try:
        prompt, after = prompt_of(fields.prompt, types)
    except JobError as error:
        return refused(error)
    models = [facts(model) for model in sampled_models(prompt, types)]
    return ExplainedWorkflow(after=after, lacks=editor_workflow.lacking(prompt, types), models=models)


def prompt_of(data: dict[str, Any], types: editor_workflow.Types) -> tuple[Prompt, list[str]]:
    """Make a prompt of a workflow in either format; one of the editor has nodes of the pack then.

    Returns:
        The prompt; the nodes behind which Compile Model was put.

    Raises:
        JobError: it cannot be read, or needs what this ComfyUI does not have.
    """
    if not editor_workflow.is_editors(data):
        prompt = checked(data, _SENT)
        if not nodes_of_ours(prompt):
            raise JobError("The workflow has no node of OneGraph.")
        return prompt, []
    return inserting.prompt_of_editors(data, types, _SENT)


def refused(error: JobError) -> Refusal:
    """Answer that a workflow is of no use here."""
    kind = reasons.WorkflowNotHere if isinstance(error, CannotTellError) else reasons.WorkflowRefused
    return Refusal(400, kind(str(error)))
