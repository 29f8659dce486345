"""Who may read the status route, and what it tells of folders."""

from __future__ import annotations

import asyncio
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from onegraph.common.reasons import HostNotAllowed
from onegraph.host import progress, routes
from onegraph.host.routes import refusal, texts_without_paths

LISTEN = "127.0.0.1"


@pytest.mark.parametrize(
    "host",
    [
        None, "127.0.0.1", "127.0.0.1:8188", "localhost", "LOCALHOST:8188", "localhost.", "[::1]:8188", "[fe80::1]",
        "192.168.1.20:8188", "203.0.113.7", " 127.0.0.1 ", "comfyui:8188", "comfy_ui-1", "studio.local:8188",
        "comfyui.default.svc.cluster.local", "host.docker.internal", "nas.home.arpa", "studio.lan.", "x.localhost",
    ],
)  # fmt: skip
def test_addresses_are_answered(host: str | None) -> None:
    assert refusal(host, LISTEN) is None


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:8188", "localhost.evil.example", "127.0.0.1.evil.example", "[evil.example]",
        "::1", "127.0.0.1@evil.example", "evil.example@127.0.0.1", "127.0.0.1:8188:1", "127.1", "0x7f000001", "[::1",
        "127.0.0.1, evil.example", "127.0.0.1/x", "localhost:", "127.0.0.\u0661", "0.0.0.0,::", ".local", "evil.arpa",
        "local.evil.example", ".", "<b>", "a\nb", "*", "evil.localx", "\u043b.local",
    ],
)  # fmt: skip
def test_names_are_refused(host: str) -> None:
    for listen in (LISTEN, ""):
        found = refusal(host, listen, "cross-site")
        assert isinstance(found, HostNotAllowed)
        assert re.fullmatch(r"[a-z0-9.-]*", found.host)


def test_a_proxys_name_is_answered_where_it_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the setting, or by a browser that reached the page over HTTPS, where a certificate showed whose name it is."""
    name = "comfy.example.com"
    found = refusal(f"{name}:443", LISTEN)
    assert found == HostNotAllowed(name)
    assert found.text == (
        f"The server is asked for as {name}, which may be a web site's name. "
        f"Start ComfyUI with ONEGRAPH_ALLOWED_HOSTS={name} if it is this server's."
    )
    assert [refusal(name, LISTEN, site) is None for site in ("same-origin", "none", "same-site", "cross-site", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    monkeypatch.setenv("ONEGRAPH_ALLOWED_HOSTS", f"other.example, {name.upper()}.")
    assert refusal(name, LISTEN) is None
    assert refusal("evil.example", LISTEN) == HostNotAllowed("evil.example")
    monkeypatch.setenv("ONEGRAPH_ALLOWED_HOSTS", "*")
    assert refusal("evil.example", LISTEN) is None


@pytest.mark.parametrize("listen", ["studio.example", "127.0.0.1, Studio.example", "studio.example.,::"])
def test_the_name_listened_on_is_answered(listen: str) -> None:
    assert refusal("studio.EXAMPLE:8188", listen) is None
    assert refusal("other.example:8188", listen) == HostNotAllowed("other.example")


def test_texts_have_no_absolute_paths() -> None:
    found = texts_without_paths(
        {
            "said": {"5": "eager: '/home/me/a.graphs' is gone"},
            "reasons": {"at /a/b/x": 1, "at /c/d/x": 2},
            "n": [None, "~/a/b"],
        }
    )
    assert found == {"said": {"5": "eager: 'a.graphs' is gone"}, "reasons": {"at x": 3}, "n": [None, "b"]}


def test_the_status_has_no_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(progress.texts, "5:decoder", "eager: /home/me/models/x.graphs cannot be read")
    assert routes.status()["said"]["5:decoder"] == "eager: x.graphs cannot be read"


@pytest.fixture
def server_routes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The routes of a server that listens on this machine only."""
    web = pytest.importorskip("aiohttp.web")
    modules = {name: ModuleType(name) for name in ("server", "comfy", "comfy.cli_args")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    table = web.RouteTableDef()
    vars(modules["server"])["PromptServer"] = SimpleNamespace(instance=SimpleNamespace(routes=table))
    vars(modules["comfy.cli_args"])["args"] = SimpleNamespace(listen=LISTEN)
    routes.register()
    return table


@pytest.mark.parametrize(("host", "code"), [("localhost:8188", 200), ("evil.example:8188", 403)])
def test_the_route_refuses_foreign_names(host: str, code: int, server_routes: Any) -> None:
    from aiohttp.test_utils import make_mocked_request

    (route,) = server_routes
    request = make_mocked_request("GET", "/onegraph/status", headers={"Host": host})
    answer = asyncio.run(route.handler(request))
    assert answer.status == code
    assert ("ONEGRAPH_ALLOWED_HOSTS=evil.example" in answer.text) == (code == 403)
