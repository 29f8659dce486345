"""Why a request to the server is refused."""

from __future__ import annotations

from .base import Reason


class HostNotAllowed(Reason):
    """A request names the server in a way that a web site's page could, too; `host` is that name, without a port."""

    host: str

    def clause(self) -> str:
        if not self.host:
            return "The request names no server that could be meant. Ask by an IP address or by a name."
        return (
            f"The server is asked for as {self.host}, which may be a web site's name. "
            f"Start ComfyUI with ONEGRAPH_ALLOWED_HOSTS={self.host} if it is this server's."
        )
