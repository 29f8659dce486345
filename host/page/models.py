"""What clients send and what they are answered, field by field. Times are ISO 8601 in UTC, sizes are bytes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from ...graph_cache.disk.report import Description, Totals
from ..jobs.model_facts import ModelFacts
from ..show.badges import BadgeOf
from .answers import AnswerBody, RequestBody

ModelState = Literal["ready", "partly", "would_compile"]

_TEXT = Field(default="", max_length=200)
_MOST_BUDGET = 1 << 60


class NoFields(RequestBody):
    """No field at all: what a client sends is not looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StatusOf(RequestBody):
    """Attributes: `prompt_id`: the prompt that is asked for; none: the process."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt_id: str | None = Field(default=None, max_length=100)


# Graphs -----------------------------------------------------------------------------------------------------


class ListOfGraphs(RequestBody):
    """Which graphs, and in what order; by default the latest used first.

    Attributes:
        state, model, component: patterns as of `onegraph ls --filter`; empty: all.
        search: what one of the texts of an entry holds.
        order: empty: numbers and times from the largest, texts from the first.
        beside: whether to list the copies beside checkpoints, too.
        partial: whether to answer with what is known so far while the folders are read for the first time.
    """

    state: str = _TEXT
    model: str = _TEXT
    component: str = _TEXT
    search: str = _TEXT
    sort: Literal["used", "bytes", "model", "state", "restores"] = "used"
    order: Literal["", "asc", "desc"] = ""
    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=0, le=500)
    partial: bool = False
    beside: bool = False


class Entry(Description):
    """A graph, as `onegraph ls --json` describes it.

    Attributes:
        restore_seconds: what its last restore on this machine took; null: not known.
    """

    restore_seconds: float | None = None


class Graphs(AnswerBody):
    """Some of those that were asked for; `total`: how many these are.

    Attributes:
        complete: false: a partial list, of what was found so far.
    """

    entries: list[Entry]
    total: int
    totals: Totals
    revision: str
    complete: bool


class File(AnswerBody):
    name: str
    bytes: int


class Details(AnswerBody):
    """More of a graph.

    Attributes:
        key: fields of its key as texts, those of its target one by one.
        remedy: what to do where it is of no use here, and `remedy_code` its name for programs and translations.
    """

    key: dict[str, str]
    files: list[File]
    remedy: str | None
    remedy_code: str | None


class DetailedGraph(AnswerBody):
    entry: Entry
    details: Details


class ActionResult(AnswerBody):
    """What became of a graph: `code` for programs, `text` for people."""

    done: bool
    text: str
    code: str
    entry: Entry | None


class Prune(RequestBody):
    """Attributes: `beside`: remove the copies beside checkpoints that nothing here can use, instead of the budget's.
    `unusable`: remove what nothing here can use, too, whatever the budget.
    """

    dry_run: bool = Field(strict=True)
    beside: bool = Field(default=False, strict=True)
    unusable: bool = Field(default=False, strict=True)


class PruneResult(AnswerBody):
    """Bytes are those that count for the budget."""

    removed: list[Entry]
    kept_in_use: int
    before: int
    after: int
    dry_run: bool


# Model files ------------------------------------------------------------------------------------------------


class ModelFile(AnswerBody):
    """A file in ComfyUI's folders.

    Attributes:
        graphs, bytes: of graphs beside it that can be used here.
    """

    name: str
    folder: str
    state: ModelState
    graphs: int
    bytes: int
    last_used: str | None


class ModelFiles(AnswerBody):
    models: list[ModelFile]


# Settings ---------------------------------------------------------------------------------------------------


class ChangedSettings(RequestBody):
    disk_budget_bytes: int | None = Field(strict=True, ge=1, le=_MOST_BUDGET)


class Settings(AnswerBody):
    """`disk_budget_bytes`: null: no limit."""

    disk_budget_bytes: int | None
    disk_budget_from: Literal["default", "environment", "setting"]


# Nodes ------------------------------------------------------------------------------------------------------


class Badges(AnswerBody):
    """As the event `onegraph.badge` tells them."""

    badges: list[BadgeOf]


# Jobs -------------------------------------------------------------------------------------------------------


class Workflow(RequestBody):
    """A workflow in ComfyUI's API format, or as its editor saves it."""

    prompt: dict[str, Any]


class EditorWorkflow(RequestBody):
    """A workflow as ComfyUI's editor saves it."""

    workflow: dict[str, Any]


class ExplainedWorkflow(AnswerBody):
    """What is told of a workflow without running it.

    Attributes:
        after: the nodes behind which Compile Model was put, since the workflow has no node of the pack.
        lacks: files, or other choices, that this ComfyUI does not have.
    """

    after: list[str]
    lacks: list[str]
    models: list[ModelFacts]


class QueuedJob(AnswerBody):
    job: str


class Readiness(AnswerBody):
    """`waiting_for`: lines of the warm-up list whose graphs are not restored."""

    ready: bool
    waiting_for: list[str]
