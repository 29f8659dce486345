"""The one place that sees requests: it asks who may, checks what was sent, and answers without holding up the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from ...common import reasons
from ...common.log import logger
from ...common.plain_text import plain
from .access import change_refusal, refusal
from .answers import Answer, Refusal, Route, Text, WithStatus
from .texts import texts_without_paths

if TYPE_CHECKING:
    from aiohttp import web

log = logger("host")

MOST_BYTES = 4 << 20  # of a request: workflows may hold drawings
_MOST_DETAIL = 300
# Nobody keeps an answer: another user of the same browser may read it, and a type is not to be guessed.
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
# Lists do not wait for what is changed: that may have to wait for other processes.
_READING = ThreadPoolExecutor(4, "onegraph-reading")
_CHANGING = ThreadPoolExecutor(4, "onegraph-changing")


def add(table: web.RouteTableDef, routes: Iterable[Route], listen: str) -> None:
    """Add routes to a server's. `listen`: the addresses or names that it was told to listen on."""
    for route in routes:
        table.route(route.method, f"/onegraph/{route.path}")(_handler(route, listen))


def _handler(route: Route, listen: str) -> Any:
    async def handle(request: web.Request) -> web.Response:
        headers = request.headers
        host, site = headers.get("Host"), headers.get("Sec-Fetch-Site")
        sent = b""
        if route.method == "POST":
            refused = change_refusal(host, listen, site, headers.get("Origin"), request.content_type)
            if refused is None and "Content-Encoding" in headers:
                refused = reasons.NotJson()
            if refused is not None:
                return _response(Refusal(415 if isinstance(refused, reasons.NotJson) else 403, refused))
            body = await _body(request)
            if body is None:
                return _response(Refusal(413, reasons.RequestTooLarge(MOST_BYTES)))
            sent = body
        else:
            not_allowed = refusal(host, listen, site)
            if not_allowed is not None:
                return _response(Refusal(403, not_allowed))
        named, query = dict(request.match_info), dict(request.query)
        pool = _READING if route.method == "GET" else _CHANGING
        answer = await asyncio.get_running_loop().run_in_executor(pool, _answer, route, named, query, sent)
        return _response(answer)

    return handle


async def _body(request: web.Request) -> bytes | None:
    """Read what was sent; None where that is too much, which is not read."""
    if (request.content_length or 0) > MOST_BYTES:
        return None
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    return bytes(body)


def _answer(route: Route, named: dict[str, str], query: dict[str, str], sent: bytes) -> Answer:
    """Check what was sent and answer. Never raises."""
    try:
        data: Any = query
        if route.method == "POST":
            data = json.loads(sent or b"{}")
        if not isinstance(data, dict) or not {*named}.isdisjoint(data):
            return Refusal(400, reasons.BadRequest("a JSON object with the documented fields is expected"))
        fields = route.request_model.model_validate({**data, **named})
    except ValidationError as error:
        return _wrong(error, named)
    except (ValueError, RecursionError):
        return Refusal(400, reasons.BadRequest("it is no JSON"))
    try:
        return route.answer(fields)
    except Exception as error:  # never into the server
        log.exception("GET or POST /onegraph/%s failed", route.path)
        return Refusal(500, reasons.ServerError(type(error).__name__))


def _wrong(error: ValidationError, named: dict[str, str]) -> Refusal:
    """Say which field is wrong, without repeating what was sent."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    fields = {str(one["loc"][0]) for one in errors if one["loc"]}
    if fields & {*named}:  # a graph or a job that cannot be
        return Refusal(404, reasons.UnknownJob() if "job" in named else reasons.UnknownGraph())
    details = (f"{'.'.join(map(str, one['loc'])) or 'request'}: {one['msg']}" for one in errors)
    return Refusal(400, reasons.BadRequest(plain("; ".join(details))[:_MOST_DETAIL]))


def _response(answer: Answer) -> web.Response:
    from aiohttp import web

    if isinstance(answer, Text):
        return web.Response(text=answer.text, content_type=answer.content_type, headers=_HEADERS)
    if isinstance(answer, Refusal):
        data: Any = {"error": answer.reason.text, "code": answer.reason.code}
        return web.json_response(texts_without_paths(data), status=answer.status, headers=_HEADERS)
    status, body = (answer.status, answer.body) if isinstance(answer, WithStatus) else (200, answer)
    data = body.model_dump(mode="json") if isinstance(body, BaseModel) else body
    return web.json_response(texts_without_paths(data), status=status, headers=_HEADERS)
