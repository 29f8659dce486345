"""Which requests are answered: each is checked before any answer is made, on a real server of aiohttp."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from onegraph.common.reasons import UnknownJob
from onegraph.host.page import request_handler
from onegraph.host.page.answers import AnswerBody, GraphRequest, JobRequest, Refusal, RequestBody, Route, Text
from onegraph.host.page.models import NoFields
from onegraph.host.page.routes import ROUTES

web = pytest.importorskip("aiohttp.web")

JSON = {"Content-Type": "application/json"}


class Numbers(RequestBody):
    first: int = Field(default=0, ge=0, le=9)
    texts: list[Any] = []


class Sum(AnswerBody):
    seen: dict[str, Any]


class Desk:
    """Routes that note what reaches them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.threads: set[str] = set()

    def note(self, given: RequestBody) -> Sum:
        self.seen.append(given)
        self.threads.add(threading.current_thread().name)
        return Sum(seen=given.model_dump())

    def fail(self, given: RequestBody) -> Sum:
        raise OSError("/home/me/secret/file is gone")

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("GET", "numbers", Numbers, self.note),
            Route("POST", "numbers", Numbers, self.note),
            Route("POST", "graphs/{id}/x", GraphRequest, self.note),
            Route("GET", "jobs/{job}", JobRequest, lambda given: Refusal(404, UnknownJob())),
            Route("POST", "fail", NoFields, self.fail),
            Route("GET", "text", NoFields, lambda given: Text("<b>/home/me/x</b>", "text/plain")),
            Route("GET", "markup", NoFields, lambda given: {"label": "<img src=x onerror=alert(1)> /home/me/x.graphs"}),
        )


@pytest.fixture
def desk() -> Desk:
    return Desk()


Ask = Callable[..., tuple[int, Any, dict[str, str]]]


@pytest.fixture
def ask(desk: Desk) -> Ask:
    """Send a request to a server with the desk's routes; status, body and headers of the answer."""
    from aiohttp.test_utils import TestClient, TestServer

    def run(method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Any:
        async def talk() -> Any:
            app, table = web.Application(client_max_size=1 << 30), web.RouteTableDef()
            request_handler.add(table, desk.routes(), "127.0.0.1")
            app.add_routes(table)
            async with (
                TestClient(TestServer(app)) as client,
                client.request(method, path, data=data, headers=headers) as answer,
            ):
                text = await answer.text()
                return answer.status, json.loads(text) if "json" in answer.content_type else text, answer.headers

        return asyncio.run(talk())

    return run


def test_values_are_checked_before_anything_sees_them(ask: Ask, desk: Desk) -> None:
    assert ask("GET", "/onegraph/numbers?first=3")[:2] == (200, {"seen": {"first": 3, "texts": []}})
    assert ask("POST", "/onegraph/numbers", '{"first": 4}', JSON)[0] == 200
    assert ask("POST", "/onegraph/numbers", "", JSON)[0] == 200
    assert [given.first for given in desk.seen] == [3, 4, 0]
    assert all(name.startswith(("onegraph-reading", "onegraph-changing")) for name in desk.threads)
    for query in ("first=10", "first=x", "first=-1", "path=/etc/passwd", "first=1&folder=..%2f.."):
        status, found, _ = ask("GET", f"/onegraph/numbers?{query}")
        assert (status, found["code"]) == (400, "bad_request"), query
        assert "passwd" not in found["error"]
    for body in ("{", "[]", "3", "null", '{"first": 10}', '{"folder": "/etc"}', "[" * 100_000, "\xff"):
        assert ask("POST", "/onegraph/numbers", body, JSON)[0] == 400, body[:20]
    assert len(desk.seen) == 3


def test_too_much_is_not_read(ask: Ask, desk: Desk) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 100_000

    for body in (b" " * 10_000_000, pieces()):  # with a length, and without
        status, found, _ = ask("POST", "/onegraph/numbers", body, JSON)
        assert (status, found["code"]) == (413, "request_too_large")
    assert ask("POST", "/onegraph/numbers", b" " * (request_handler.MOST_BYTES - 2) + b"{}", JSON)[0] == 200
    assert len(desk.seen) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415), ({"Content-Type": "text/plain"}, 415), ({**JSON, "Content-Encoding": "gzip"}, 415),
        ({**JSON, "Origin": "http://evil.example"}, 403), ({**JSON, "Origin": "null"}, 403),
        ({**JSON, "Sec-Fetch-Site": "cross-site"}, 403), ({**JSON, "Host": "evil.example"}, 403),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)  # fmt: skip
def test_who_may_not_change_anything_is_not_heard(headers: dict[str, str], status: int, ask: Ask, desk: Desk) -> None:
    assert ask("POST", "/onegraph/numbers", "{}", headers)[0] == status
    assert len(desk.seen) == (status == 200)
    assert ask("GET", "/onegraph/numbers", headers={"Host": "evil.example"})[0] == 403


TRICKS = ["..", "%2e%2e", "..%2f..%2fsettings.json", "%2fetc%2fpasswd", "0123%00", "0123456789%00", "0123456789%0a",
          "ABCDEF0123", "01234567890", "x" * 10, "%C2%B2123456789", "0123456789.json", "*"]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
def test_a_graph_is_named_by_its_id_alone(trick: str, ask: Ask, desk: Desk) -> None:
    status, found, _ = ask("POST", f"/onegraph/graphs/{trick}/x", "{}", JSON)
    assert status in (404, 405)
    assert not isinstance(found, dict) or found["code"] == "unknown_graph"
    assert not desk.seen


def test_a_body_names_no_other_graph(ask: Ask, desk: Desk) -> None:
    assert ask("POST", "/onegraph/graphs/0123456789/x", '{"id": "9876543210"}', JSON)[0] == 400
    assert ask("POST", "/onegraph/graphs/0123456789/x", "{}", JSON)[0] == 200
    assert [given.id for given in desk.seen] == ["0123456789"]
    assert (
        ask("GET", "/onegraph/jobs/x")[1]["code"]
        == ask("GET", f"/onegraph/jobs/{'0' * 32}")[1]["code"]
        == "unknown_job"
    )


def test_what_fails_tells_no_path(ask: Ask) -> None:
    status, found, _ = ask("POST", "/onegraph/fail", "{}", JSON)
    assert (status, found["code"]) == (500, "server_error")
    assert "OSError" in found["error"] and "secret" not in found["error"]


def test_no_browser_guesses_a_type_or_keeps_an_answer(ask: Ask) -> None:
    for path, kind in (("text", "text/plain"), ("markup", "application/json"), ("numbers?first=x", "application/json")):
        _, _, headers = ask("GET", f"/onegraph/{path}")
        assert headers["Content-Type"].startswith(kind)
        assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert ask("GET", "/onegraph/markup")[1] == {"label": "<img src=x onerror=alert(1)> x.graphs"}


def test_nothing_is_changed_by_another_method(ask: Ask, desk: Desk) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD"):
        assert ask(method, "/onegraph/graphs/0123456789/x", None, JSON)[0] == 405
    assert not desk.seen


def test_what_changes_something_is_posted() -> None:
    reading = {route.path for route in ROUTES if route.method == "GET"}
    assert reading == {
        "status", "graphs", "graphs/{id}", "models", "bake/{job}", "settings", "badges", "metrics", "ready",
    }  # fmt: skip
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_each_route_is_documented() -> None:
    text = (Path(__file__).parents[4] / "docs" / "server.md").read_text()
    rows = re.findall(r"^\| `(GET|POST) ([^`]+)`(?:, `(\w+)`)?", text, re.MULTILINE)
    listed = {(method, path) for method, path, _ in rows}
    listed |= {(method, f"{path.rpartition('/')[0]}/{other}") for method, path, other in rows if other}
    assert listed == {(route.method, route.path.replace("{id}", "ID").replace("{job}", "JOB")) for route in ROUTES}
