"""What routes are: a table of functions that take checked values and give models. None of them sees a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from ...common.reasons import Reason
from ...common.strict import Strict

ENTRY_ID = r"^[0-9a-f]{10}$"
JOB_ID = r"^[0-9a-f]{32}$"


class RequestBody(Strict):
    """What a client may send, in the path, the query or as JSON. Anything else is refused."""


class GraphRequest(RequestBody):
    """A graph by its id."""

    id: str = Field(pattern=ENTRY_ID)


class JobRequest(RequestBody):
    """A job by its id."""

    job: str = Field(pattern=JOB_ID)


class AnswerBody(Strict):
    """What a client is sent, as JSON."""


@dataclass(frozen=True)
class Refusal:
    """An answer that says why there is no other.

    Attributes:
        status: of HTTP.
    """

    status: int
    reason: Reason


@dataclass(frozen=True)
class Text:
    """An answer that is no JSON."""

    text: str
    content_type: str


@dataclass(frozen=True)
class WithStatus:
    """JSON with another status than 200."""

    status: int
    body: AnswerBody


Answer = AnswerBody | Refusal | Text | WithStatus | Mapping[str, Any]


@dataclass(frozen=True)
class Route:
    """A route below /onegraph/.

    Attributes:
        method: GET changes nothing; POST is for this server's own page and for programs.
        path: with `{id}` or `{job}` where the client names a graph or a job.
        request_model: what a client sends: in the path, and in the query (GET) or as JSON (POST).
        answer: called in a thread.
    """

    method: Literal["GET", "POST"]
    path: str
    request_model: type[RequestBody]
    answer: Callable[[Any], Answer]
