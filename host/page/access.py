"""Who may ask: which requests of browsers are answered, and which may change something."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit

from ...common import reasons
from ...common.reasons import Reason

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^][/@?#:\s]+))(?::[0-9]{1,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9_.-]{1,253}")  # what may be repeated in an answer
_PRIVATE = re.compile(r"[a-z][a-z0-9_-]*|[a-z0-9_.-]+\.(?:localhost|local|internal|lan|home|corp|home\.arpa)")
_OWN_PAGES = ("same-origin", "none")  # of Sec-Fetch-Site; none: the user typed the address


def refusal(host: str | None, listen: str, site: str | None = None) -> reasons.HostNotAllowed | None:
    """Say why a request is not answered, or None: it names this server as no web site can, or its own page asks.

    A browser sends the name of the site whose page asks. A site whose name leads to this machine (DNS rebinding) is of
    one origin with the server for the browser, and could read any answer. Names without a dot, as in a compose file,
    and those of private networks lead to no web site. `Sec-Fetch-Site`, which no page can set, is sent over HTTPS or to
    this very machine alone, where the name was proved by a certificate, as that of a proxy.

    Args:
        host: the request's Host; None where it has none, which no browser's does.
        listen: the addresses or names that the server was told to listen on, separated by commas.
        site: the request's Sec-Fetch-Site.

    >>> refusal("127.0.0.1:8188", "127.0.0.1") is None
    True
    >>> refusal("attacker.example", "127.0.0.1").code
    'host_not_allowed'
    """
    if host is None:
        return None
    match = _HOST.fullmatch(host.strip())
    if match is None:
        return reasons.HostNotAllowed("")
    name = _normalized(match[1] or match[2])
    allowed = {"localhost", *map(_normalized, listen.split(",")), *map(_normalized, _allowed().split(","))}
    if name in allowed - {""} or "*" in allowed or _PRIVATE.fullmatch(name) or site in _OWN_PAGES or _is_address(name):
        return None
    return reasons.HostNotAllowed(name if _NAME.fullmatch(name) else "")


def _allowed() -> str:
    """Names by which clients may ask for this server, separated by commas: those of a proxy. `*`: any."""
    return os.environ.get("ONEGRAPH_ALLOWED_HOSTS", "")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _normalized(host: str) -> str:
    return host.strip().lower().removesuffix(".")


def change_refusal(
    host: str | None, listen: str, site: str | None, origin: str | None, content_type: str
) -> Reason | None:
    """Say why a request may not change anything, or None: this server's own page sent it, or no browser did.

    Each of the three headers is checked by itself. A browser sends `Origin` with each POST, and no page can set it, nor
    `Sec-Fetch-Site`. A page of another site cannot send JSON without asking first, which nothing here answers.

    Args:
        host, listen, site: as for `refusal`. A request that may change something has a Host.
        origin: the request's Origin; None: it has none, as those of programs.
        content_type: the request's, without parameters.
    """
    refused = refusal(host, listen, site) if host is not None else reasons.HostNotAllowed("")
    if refused is not None:
        return refused
    if site not in (None, "same-origin") or (origin is not None and not _is_own(origin, host or "")):
        return reasons.ForeignOrigin()
    return None if content_type == "application/json" else reasons.NotJson()


def _is_own(origin: str, host: str) -> bool:
    """Whether an Origin is this server as the request names it, or one of the names that its proxy has."""
    try:
        url = urlsplit(origin)
        request = urlsplit(f"{url.scheme}://{host.strip()}")
        default = {"http": 80, "https": 443}.get(url.scheme)
        if default is None or not url.hostname or url.path or url.query or url.fragment or "@" in url.netloc:
            return False
        ports = (url.port or default, request.port or default)
    except ValueError:
        return False
    name = _normalized(url.hostname)
    if name == _normalized(request.hostname or "") and ports[0] == ports[1]:
        return True
    return name in {*map(_normalized, _allowed().split(","))} - {"", "*"}  # of a proxy that sends another Host
