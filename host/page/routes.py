"""The routes below /onegraph/, each with what answers it; `request_handler` alone sees requests."""

from __future__ import annotations

from ...common.log import logger
from . import bake, graphs, metrics, model_list, process, request_handler, settings, workflows
from .access import change_refusal, refusal
from .answers import GraphRequest, JobRequest, Route
from .models import ChangedSettings, EditorWorkflow, ListOfGraphs, NoFields, Prune, StatusOf, Workflow
from .process import status
from .texts import texts_without_paths

log = logger("host")

__all__ = ["ROUTES", "change_refusal", "refusal", "register", "status", "texts_without_paths"]

ROUTES = (
    Route("GET", "status", StatusOf, process.read),
    Route("GET", "graphs", ListOfGraphs, graphs.list_graphs),
    Route("GET", "graphs/{id}", GraphRequest, graphs.details),
    Route("POST", "graphs/{id}/verify", GraphRequest, graphs.verify),
    Route("POST", "graphs/{id}/pin", GraphRequest, graphs.pin),
    Route("POST", "graphs/{id}/unpin", GraphRequest, graphs.unpin),
    Route("POST", "graphs/{id}/delete", GraphRequest, graphs.delete),
    Route("POST", "graphs/{id}/retry", GraphRequest, graphs.retry),
    Route("POST", "prune", Prune, graphs.prune),
    Route("GET", "models", NoFields, model_list.list_models),
    Route("POST", "insert", EditorWorkflow, workflows.insert),
    Route("POST", "explain", Workflow, workflows.explain),
    Route("POST", "bake", Workflow, bake.begin),
    Route("GET", "bake/{job}", JobRequest, bake.read),
    Route("POST", "bake/{job}/cancel", JobRequest, bake.cancel),
    Route("GET", "settings", NoFields, settings.read),
    Route("POST", "settings", ChangedSettings, settings.change),
    Route("GET", "badges", NoFields, process.all_badges),
    Route("GET", "metrics", NoFields, metrics.read),
    Route("GET", "ready", NoFields, process.ready),
)


def register() -> None:
    """Add the routes to ComfyUI's server; without a server (in-process use) there is nothing to do."""
    from comfy.cli_args import args
    from server import PromptServer

    from ...runtime.obtain.registry import registry
    from ..show import events
    from .warm_up import warm_up

    server = getattr(PromptServer, "instance", None)
    if server is None:
        return
    request_handler.add(server.routes, ROUTES, args.listen)
    registry().store.disk.on_change = events.graphs_changed

    async def started(app: object) -> None:
        warm_up.start()

    try:
        server.app.on_startup.append(started)  # when all custom nodes are there
    except Exception:  # a host that begins otherwise
        log.warning("the warm-up list is restored while custom nodes load", exc_info=True)
        warm_up.start()
