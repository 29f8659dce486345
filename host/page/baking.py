"""Workflows whose graphs are compiled in this server: short runs on its own queue, one job after the other."""

from __future__ import annotations

import copy
import json
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from ...common.errors import in_brief, without_paths
from ...common.log import logger
from ...runtime.obtain.registry import registry
from ..comfyui import host_routes
from ..comfyui.comfyui_nodes import comfyui_nodes
from ..comfyui.prompt_server import prompt_server
from ..jobs.trial_runs import JobError, NodeType, Prompt, nodes_of_ours, refusal_text, run_until_nothing_compiles
from ..show import events, status
from .answers import AnswerBody

log = logger("host")

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
MOST_WAITING = 10
_MOST_REMEMBERED = 100  # jobs of which the end is remembered
_QUEUEING_SECONDS = 600  # a workflow is validated by its nodes, which may read files
_OVER = ("done", "failed", "cancelled")


class BakeProgress(AnswerBody):
    """A workflow whose graphs are compiled: how far it is.

    Attributes:
        done, of: nodes of OneGraph whose runs are over, and all in the workflow. One that nothing uses never runs.
        compiled, restored: graphs, since the job began.
        prompt_id: the prompt that runs the workflow now; empty before the first.
    """

    job: str
    of: int
    state: JobState = "waiting"
    done: int = 0
    text: str = "waiting for the jobs before it"
    compiled: int = 0
    restored: int = 0
    prompt_id: str = ""


class _Cancelled(Exception):
    """The user wants no more of it."""


@dataclass
class _Bake:
    """A job of this process. `prompt`: None once it is over."""

    now: BakeProgress
    prompt: Prompt | None
    cancelled: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """All jobs of this process. One thread runs them, as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bakes: dict[str, _Bake] = {}
        self._running = False

    def add(self, prompt: Prompt) -> BakeProgress | None:
        """Begin a job, or put it behind the others; None: too many wait already.

        Args:
            prompt: a workflow in the API format, with nodes of OneGraph.
        """
        with self._lock:
            if sum(one.now.state == "waiting" for one in self._bakes.values()) >= MOST_WAITING:
                return None
            job = BakeProgress(job=uuid.uuid4().hex, of=len(nodes_of_ours(prompt)))
            self._bakes[job.job] = _Bake(job, prompt)
            over = [name for name, one in self._bakes.items() if one.now.state in _OVER]
            for name in over[: max(0, len(self._bakes) - _MOST_REMEMBERED)]:
                del self._bakes[name]
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="onegraph-bake", daemon=True).start()
        return job

    def get(self, job: str) -> BakeProgress | None:
        """Tell how far a job is."""
        bake = self._bakes.get(job)
        return None if bake is None else bake.now

    def cancel(self, job: str) -> BakeProgress | None:
        """End a job; what it compiled stays. A running one ends within a second or two."""
        bake = self._bakes.get(job)
        if bake is None:
            return None
        bake.cancelled.set()
        with self._lock:
            if bake.now.state == "waiting":
                bake.now = bake.now.model_copy(update={"state": "cancelled", "text": "cancelled before it began"})
                bake.prompt = None
        events.send("onegraph.bake", bake.now.model_dump())
        return bake.now

    def _next(self) -> _Bake | None:
        with self._lock:
            for bake in self._bakes.values():
                if bake.now.state == "waiting":
                    bake.now = bake.now.model_copy(update={"state": "running", "text": "running the workflow"})
                    return bake
            self._running = False
            return None

    def _run(self) -> None:
        while (bake := self._next()) is not None:
            run = _JobRun(bake)
            try:
                assert bake.prompt is not None
                events.send("onegraph.bake", bake.now.model_dump())  # it began: before any badge of its compiles
                run_until_nothing_compiles(run, "bake", bake.prompt, "", run.tell)
            except _Cancelled:
                run.show(state="cancelled", text="cancelled; what was compiled stays")
            except JobError as error:
                cancelled = bake.cancelled.is_set()  # ComfyUI says then that it was interrupted
                text = "cancelled; what was compiled stays" if cancelled else without_paths(str(error))
                run.show(state="cancelled" if cancelled else "failed", text=text)
            except Exception as error:  # never into the server
                log.exception("a workflow could not be baked")
                run.show(state="failed", text=f"It could not be run ({in_brief(error)}); ComfyUI's log says more.")
            bake.prompt = None


class _JobRun:
    """One job on this server's queue; `trial_runs.Server`."""

    def __init__(self, bake: _Bake) -> None:
        self._bake = bake
        self._before = (registry().counters.compiles, registry().counters.restores)
        self._prompt_id = ""
        self._ready: set[str] = set()

    def show(self, **changes: Any) -> None:
        """Note how far the job is, and tell open pages if that is news."""
        counters = registry().counters
        if self._prompt_id and self._bake.prompt is not None:
            self._ready |= status.ran_in(self._prompt_id) & {*nodes_of_ours(self._bake.prompt)}
        changes |= {
            "done": self._bake.now.of if changes.get("state") == "done" else len(self._ready),
            "compiled": counters.compiles - self._before[0],
            "restored": counters.restores - self._before[1],
            "prompt_id": self._prompt_id,
        }
        now = self._bake.now.model_copy(update=changes)
        if now != self._bake.now or now.state in _OVER:
            self._bake.now = now
            events.send("onegraph.bake", now.model_dump())

    def tell(self, event: str, **facts: Any) -> None:
        """Take what the run tells of itself."""
        if event == "running":
            again = "running it once more, to see that nothing compiles"
            self.show(text="running the workflow" if facts["round"] == 1 else again)
        elif event == "compiling":
            one = facts["compiles"][0]
            self.show(text=f"compiling {one['component']}, {one['label']}: {one['share']:.0%}")
        elif event == "ran":
            self.show(state="done", text=_verdict(facts["runs"], facts["compiles"]))

    # Where the workflow runs --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """As the status route, of what is looked at. Raises _Cancelled."""
        if self._bake.cancelled.is_set():
            raise _Cancelled
        self.show()
        counts = registry().status()
        runs = {"all_runs": status.all_runs(), "prompts": status.prompts()}
        return {**counts, "compiles": registry().counters.compiles, **runs}

    def node_type(self, kind: str) -> NodeType:
        """Describe a type of node; one that is missing ends no workflow."""
        node_class = comfyui_nodes().NODE_CLASS_MAPPINGS.get(kind)
        gives = getattr(node_class, "RETURN_TYPES", None) or ()
        return NodeType(bool(getattr(node_class, "OUTPUT_NODE", False)), tuple(map(str, gives)))

    def queue(self, prompt: Prompt) -> str:
        """Queue a workflow as a client does. Raises JobError."""
        answer = host_routes.ask("POST", "/prompt", _Posted(prompt), _QUEUEING_SECONDS)
        if answer.status != 200:
            raise JobError(f"ComfyUI refuses the workflow: {refusal_text(answer.text, answer.status)}")
        self._prompt_id = str(json.loads(answer.text)["prompt_id"])
        return self._prompt_id

    def result(self, prompt_id: str) -> dict[str, Any] | None:
        """Return the status of a workflow that has ended. Raises JobError where somebody took it from the queue."""
        queue = prompt_server().prompt_queue
        waiting = any(item[1] == prompt_id for items in queue.get_current_queue_volatile() for item in items)
        history = queue.get_history(prompt_id=prompt_id).get(prompt_id)
        if history is None and not waiting:
            raise JobError("The workflow was taken from the queue.")
        return None if history is None else dict(history.get("status") or {})

    def stop(self, prompt_id: str) -> None:
        """Take the workflow from the queue, or interrupt it and no other. Never raises."""
        try:
            queue = prompt_server().prompt_queue
            if not queue.delete_queue_item(lambda item: item[1] == prompt_id):
                queue.interrupt_if_running(prompt_id)
        except Exception:  # ComfyUI is another one, or ends
            log.debug("a workflow could not be stopped", exc_info=True)


class _Posted:
    """What ComfyUI's own handler reads of a client's request."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self.headers: dict[str, str] = {}

    async def json(self) -> dict[str, Any]:
        return {"prompt": copy.deepcopy(self._prompt)}


def _verdict(runs: dict[str, list[dict[str, Any]]], compiles: int) -> str:
    reports = [report for of_node in runs.values() for report in of_node]
    if compiles:
        return "Each run of this workflow compiles something, as it is another one each time."
    eager = sorted({code for report in reports for code in report["eager_codes"]})
    if not reports:
        return "No node of OneGraph ran. Look at what they show."
    if eager:
        return f"A run compiles nothing now. Some calls run uncompiled ({', '.join(eager)})."
    return "A run compiles nothing now, and all of its calls run through graphs."


jobs = Jobs()
