"""Servers of files: plain HTTP, with any fault that a network or a liar has, and S3 by moto."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

BUCKET = "graphs"
_Handler = http.server.BaseHTTPRequestHandler
# Answers in place of the server, given the request and what the file holds (None: there is none). False: the server
# is to answer as usual.
Fault = Callable[[_Handler, bytes | None], bool]


@dataclass
class FileServer:
    """A folder served over HTTP.

    Attributes:
        fault: what to do with each request first.
        asked: the paths that were asked for, in order.
        headers: of the answers.
    """

    url: str
    fault: Fault | None = None
    asked: list[str] = field(default_factory=list)
    sent: int = 0


@contextlib.contextmanager
def http_server(folder: Path) -> Iterator[FileServer]:
    """Serve a folder on a port of this machine."""
    gone = threading.Event()

    class Handler(_Handler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append(self.path)
            path = folder / self.path.lstrip("/")
            data = path.read_bytes() if path.is_file() else None
            if served.fault is not None and served.fault(self, data):
                return
            answer(self, 404 if data is None else 200, data or b"")
            served.sent += len(data or b"")

        def log_message(self, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass  # readers that do not wait any longer

    server = Server(("127.0.0.1", 0), Handler)
    server.gone = gone  # type: ignore[attr-defined]
    served = FileServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        gone.set()
        server.shutdown()
        server.server_close()


def answer(handler: _Handler, status: int, data: bytes = b"", **headers: str) -> None:
    """Give a whole answer."""
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def status(code: int) -> Fault:
    """Answer with a status."""

    def fault(handler: _Handler, data: bytes | None) -> bool:
        answer(handler, code, b"no")
        return True

    return fault


def ranges(handler: _Handler, data: bytes | None) -> bool:
    """Give the part of a file that is asked for, as the Hub does."""
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    if data is None or asked is None:
        return False
    answer(handler, 206, data[int(asked[1]) : int(asked[2]) + 1])
    return True


def silence(handler: _Handler, data: bytes | None) -> bool:
    """Take the request and say nothing until the test is over."""
    handler.server.gone.wait(60)  # type: ignore[attr-defined]
    handler.close_connection = True
    return True


def trickle(handler: _Handler, data: bytes | None) -> bool:
    """Send a byte ten times a second."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 20))
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.gone.wait(0.1):  # type: ignore[attr-defined]
            handler.wfile.write(b".")
            handler.wfile.flush()
    handler.close_connection = True
    return True


def reset(handler: _Handler, data: bytes | None) -> bool:
    """Send half an answer, and reset the connection."""
    if data is None:
        return False
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()
    return True


def truncated(handler: _Handler, data: bytes | None) -> bool:
    """Send half of a file as if it were all."""
    if data is None:
        return False
    answer(handler, 200, data[: len(data) // 2])
    return True


def wrong_bytes(handler: _Handler, data: bytes | None) -> bool:
    """Change the last byte of each file."""
    if data is None:
        return False
    answer(handler, 200, data[:-1] + bytes([data[-1] ^ 1]))
    return True


def nonsense(handler: _Handler, data: bytes | None) -> bool:
    """Answer with something that is no statement."""
    answer(handler, 200, b"{}")
    return True


def too_much(handler: _Handler, data: bytes | None) -> bool:
    """Send without end."""
    if data is None:
        return False
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.gone.is_set():  # type: ignore[attr-defined]
            handler.wfile.write(bytes(1 << 20))
    handler.close_connection = True
    return True


def redirect(target: str) -> Fault:
    """Send readers to another server."""

    def fault(handler: _Handler, data: bytes | None) -> bool:
        answer(handler, 302, b"", Location=target + handler.path)
        return True

    return fault


def only(part: str, fault: Fault) -> Fault:
    """A fault of those files alone whose path begins so."""

    def chosen(handler: _Handler, data: bytes | None) -> bool:
        return handler.path.startswith(f"/{part}") and fault(handler, data)

    return chosen


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's S3 server with one empty bucket; its address."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        server.stop()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
