"""Sentences: why a request to the server is refused."""

from __future__ import annotations

from .. import reasons
from .base import text


@text.register
def _(r: reasons.HostNotAllowed) -> str:
    if not r.host:
        return "The request names no server that could be meant. Ask by an IP address or by a name."
    return (
        f"The server is asked for as {r.host}, which may be a web site's name. "
        f"Start ComfyUI with ONEGRAPH_ALLOWED_HOSTS={r.host} if it is this server's."
    )
