"""ComfyUI's own routes, asked in its process as a client asks them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any

from typing_extensions import override

from .comfyui_nodes import comfyui_nodes

_TYPE_SECONDS = 60  # an input may list files of a slow disk


def ask(method: str, path: str, request: Any, seconds: float) -> Any:
    """The answer of a route's handler. Not for the server's own thread, which runs it.

    Args:
        request: what the handler reads of a client's request.
    """
    from server import PromptServer

    server = PromptServer.instance
    handler = next(route.handler for route in server.routes if (route.method, route.path) == (method, path))
    return asyncio.run_coroutine_threadsafe(handler(request), server.loop).result(seconds)


class _OfType:
    """A client's request for a type of node."""

    def __init__(self, name: str) -> None:
        self.match_info = {"node_class": name}


class NodeTypes(Mapping[str, Mapping[str, Any]]):
    """Types of nodes as `/object_info` has them; each is asked for when it is read."""

    def __init__(self) -> None:
        self._asked: dict[str, Mapping[str, Any]] = {}

    @override
    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in comfyui_nodes().NODE_CLASS_MAPPINGS:
            raise KeyError(name)
        if name not in self._asked:
            answer = ask("GET", "/object_info/{node_class}", _OfType(name), _TYPE_SECONDS)
            self._asked[name] = json.loads(answer.text)[name]
        return self._asked[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter([*comfyui_nodes().NODE_CLASS_MAPPINGS])

    @override
    def __len__(self) -> int:
        return len(comfyui_nodes().NODE_CLASS_MAPPINGS)
