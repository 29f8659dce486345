"""Why a request to the server is refused."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Reason


@dataclass(frozen=True)
class HostNotAllowed(Reason):
    """A request names the server in a way that a web site's page could, too; `host` is that name, without a port."""

    code = "host_not_allowed"
    host: str
