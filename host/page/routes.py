"""The routes below /onegraph/, each with what answers it; `request_handler` alone sees requests."""

from __future__ import annotations

import logging

from . import bake, graphs, metrics, model_list, process, request_handler, settings, workflows
from .access import change_refusal, refusal
from .answers import OfGraph, OfJob, Route
from .models import ChangedSettings, EditorWorkflow, ListOfGraphs, Nothing, Prune, Workflow
from .process import status
from .texts import texts_without_paths

log = logging.getLogger("onegraph.host")

__all__ = ["ROUTES", "change_refusal", "refusal", "register", "status", "texts_without_paths"]

ROUTES = (
    Route("GET", "status", Nothing, process.read),
    Route("GET", "graphs", ListOfGraphs, graphs.list_graphs),
    Route("GET", "graphs/{id}", OfGraph, graphs.details),
    Route("POST", "graphs/{id}/verify", OfGraph, graphs.verify),
    Route("POST", "graphs/{id}/pin", OfGraph, graphs.pin),
    Route("POST", "graphs/{id}/unpin", OfGraph, graphs.unpin),
    Route("POST", "graphs/{id}/delete", OfGraph, graphs.delete),
    Route("POST", "graphs/{id}/retry", OfGraph, graphs.retry),
    Route("POST", "prune", Prune, graphs.prune),
    Route("GET", "models", Nothing, model_list.list_models),
    Route("POST", "insert", EditorWorkflow, workflows.insert),
    Route("POST", "explain", Workflow, workflows.explain),
    Route("POST", "bake", Workflow, bake.begin),
    Route("GET", "bake/{job}", OfJob, bake.read),
    Route("POST", "bake/{job}/cancel", OfJob, bake.cancel),
    Route("GET", "settings", Nothing, settings.read),
    Route("POST", "settings", ChangedSettings, settings.change),
    Route("GET", "badges", Nothing, process.all_badges),
    Route("GET", "metrics", Nothing, metrics.read),
    Route("GET", "ready", Nothing, process.ready),
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
        log.warning("OneGraph: the warm-up list is restored while custom nodes load", exc_info=True)
        warm_up.start()
