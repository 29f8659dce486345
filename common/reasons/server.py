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


class ForeignOrigin(Reason):
    """A page of another site asks to change something."""

    sentence = (
        "Only this server's own page may change something, and this request comes from another one. "
        "If a proxy has another name, start ComfyUI with it in ONEGRAPH_ALLOWED_HOSTS."
    )


class NotJson(Reason):
    """A request that changes something is not plain JSON."""

    sentence = "Send Content-Type: application/json, without an encoding."


class RequestTooLarge(Reason):
    """`most`: bytes."""

    sentence = "The request is larger than the {most} bytes that are read."
    most: int


class BadRequest(Reason):
    """A field of a request is not what it has to be."""

    sentence = "The request is not as documented: {detail}."
    detail: str


class UnknownState(Reason):
    """`states`: all of them."""

    sentence = "No graph has such a state. States are {states}, and `from` with a publisher's name."
    states: str


class UnknownGraph(Reason):
    sentence = "No graph has this id. It may have been removed; read the list again."


class UnknownJob(Reason):
    sentence = "No job has this id. Jobs are known until ComfyUI ends."


class ServerError(Reason):
    """Something of the pack itself failed; the log has it."""

    sentence = "The request could not be answered ({kind}); ComfyUI's log says more."
    kind: str


class SettingsNotSaved(Reason):
    sentence = "The settings cannot be written in the user's graph folder ({detail})."
    detail: str


class WorkflowRefused(Reason):
    """A workflow cannot be read or compiled ahead; `why` is a sentence."""

    sentence = "{why}"
    why: str


class WorkflowNotHere(Reason):
    """A workflow needs what this ComfyUI does not have, or no graph at all; `why` is a sentence."""

    sentence = "{why}"
    why: str


class NothingInserted(Reason):
    sentence = "The workflow has a node of OneGraph, or none that loads a model."


class TooManyJobs(Reason):
    sentence = "Many workflows wait to be compiled ahead already. Send this one when some are done."
