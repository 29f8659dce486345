"""Who may ask, who may change something, and what is told of folders."""

from __future__ import annotations

import re
from typing import Any

import pytest

from onegraph.common.reasons import HostNotAllowed
from onegraph.host.page import routes
from onegraph.host.page.routes import change_refusal, refusal, texts_without_paths
from onegraph.host.show import progress

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
            "said": {"5": "uncompiled: '/home/me/a.graphs' is gone"},
            "reasons": {"at /a/b/x": 1, "at /c/d/x": 2},
            "n": [None, "~/a/b"],
        }
    )
    assert found == {"said": {"5": "uncompiled: 'a.graphs' is gone"}, "reasons": {"at x": 3}, "n": [None, "b"]}


def test_the_status_has_no_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(progress.texts, "5:decoder", "uncompiled: /home/me/models/x.graphs cannot be read")
    assert routes.status()["said"]["5:decoder"] == "uncompiled: x.graphs cannot be read"


SELF = {"host": "127.0.0.1:8188", "listen": LISTEN, "site": "same-origin", "origin": "http://127.0.0.1:8188"}


def change(**changes: Any) -> str | None:
    """The code by which a request that changes something is refused."""
    found = change_refusal(**{**SELF, "content_type": "application/json", **changes})
    return None if found is None else found.code


def test_its_own_page_and_programs_may_change_something() -> None:
    assert change() is None
    assert change(site=None) is None  # over plain HTTP from another machine of the network
    assert change(site=None, origin=None) is None  # no browser
    assert change(host="LocalHost", origin="http://localhost", site=None) is None
    assert change(host="comfy.lan:443", origin="https://comfy.lan") is None
    assert change(host="[::1]:8188", origin="http://[::1]:8188") is None


@pytest.mark.parametrize(
    "origin",
    [
        "null", "", "http://evil.example", "http://evil.example:8188", "https://127.0.0.1:8188.evil.example",
        "http://127.0.0.1", "http://127.0.0.1:8189", "http://localhost:8188", "ftp://127.0.0.1:8188",
        "http://127.0.0.1:8188/x", "http://evil@127.0.0.1:8188", "http://[::1", "http://127.0.0.1:99999",
        "127.0.0.1:8188", "http://127.0.0.1:8188 http://evil.example", "file://", "chrome-extension://abc",
    ],
)  # fmt: skip
def test_foreign_origins_change_nothing(origin: str) -> None:
    for site in (None, "same-origin"):
        assert change(origin=origin, site=site) == "foreign_origin"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "", "Same-Origin"])
def test_other_sites_change_nothing(site: str) -> None:
    """Each header counts by itself: also where the Origin is right, or there is none."""
    assert change(site=site) == change(site=site, origin=None) == "foreign_origin"


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:8188", "127.0.0.1@evil.example"])
def test_foreign_hosts_change_nothing(host: str | None) -> None:
    for site, origin in ((None, f"http://{host}"), (None, None), ("cross-site", None)):
        assert change(host=host, site=site, origin=origin) == "host_not_allowed"


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
def test_what_a_form_could_send_changes_nothing(kind: str) -> None:
    assert change(content_type=kind) == "not_json"


def test_a_proxy_with_another_name_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it hands on the name, a browser over HTTPS proves it. Where it sends its own, the setting tells."""
    assert change(host="comfy.example.com", origin="https://comfy.example.com") is None
    assert change(host="comfy.example.com", origin="https://comfy.example.com", site=None) == "host_not_allowed"
    assert change(host="127.0.0.1:8188", origin="https://comfy.example.com") == "foreign_origin"
    monkeypatch.setenv("ONEGRAPH_ALLOWED_HOSTS", "Comfy.example.com")
    assert change(host="127.0.0.1:8188", origin="https://comfy.example.com") is None
    assert change(host="127.0.0.1:8188", origin="https://other.example.com") == "foreign_origin"
    assert change(host="comfy.example.com", origin="https://comfy.example.com", site=None) is None
    monkeypatch.setenv("ONEGRAPH_ALLOWED_HOSTS", "*")
    assert change(host="127.0.0.1:8188", origin="https://comfy.example.com") == "foreign_origin"
    assert change(host="any.example", origin="http://any.example", site=None) is None
