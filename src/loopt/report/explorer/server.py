"""The server behind the page: on this machine only, it runs the models on what the user types into the page.

Web pages that are open in the same browser can send requests to it too. So it answers only requests that name it as
their host, takes questions only from its own page, and answers with JSON in which no text of a request comes back.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loopt.errors import InputError
from loopt.report.explorer import LONGEST_TEXT

LOOPBACK = "127.0.0.1"
LONGEST_BODY = 8 * LONGEST_TEXT
"""Bytes of a question: JSON may take six for a character, and some for the rest."""
SOCKET_SECONDS = 10.0
"""How long a connection may keep the server waiting, for its next bytes or for the whole of a question."""
THINKING_SECONDS = 20.0
"""How long the models may take for one question, waiting for others included."""
MOST_CONNECTIONS = 32
BUSY = b'HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n{"error": "too many ask at once"}'

Think = Callable[[str, float], dict[str, Any]]
"""What was typed, and how many seconds there are -> an example as the page shows it. Raises an InputError for what is
no problem, TimeoutError where the time was not enough."""


class ExplorerServer(ThreadingHTTPServer):
    """Serves one page, and what the models make of what is typed into it."""

    daemon_threads = True
    request_queue_size = 2 * MOST_CONNECTIONS

    def __init__(self, port: int, page: str, think: Think, allowed: str, seconds: float = THINKING_SECONDS) -> None:
        self.page, self.think, self.allowed, self.seconds = page.encode(), think, allowed, seconds
        self.one_at_a_time = threading.Lock()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    @property
    def hosts(self) -> set[str]:
        return {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that break off; any other error is a bug, and shown."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ExplorerServer
    timeout = SOCKET_SECONDS
    server_version, sys_version = "loopt", ""

    def do_GET(self) -> None:
        if not self._named():
            self._refuse(HTTPStatus.FORBIDDEN, "allowed is the address that loopt printed")
        elif self.path.partition("?")[0] != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is one page here, /")
        else:
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        origins = {f"http://{host}" for host in self.server.hosts}
        if not self._named() or self.headers.get("Origin") not in origins:
            self._refuse(HTTPStatus.FORBIDDEN, "allowed are questions of the page itself")
        elif self.path != "/think":
            self._refuse(HTTPStatus.NOT_FOUND, "questions go to /think")
        elif self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "allowed is application/json")
        else:
            text = self._question()
            if text is not None:
                self._answer(text)

    def _named(self) -> bool:
        return self.headers.get("Host") in self.server.hosts

    def _question(self) -> str | None:
        """Returns what was typed, or None after a refusal."""
        written = self.headers.get("Content-Length", "")
        if not (written.isascii() and written.isdecimal()) or len(written) > 9:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length: allowed is a number")
            return None
        if int(written) > LONGEST_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"allowed are {LONGEST_BODY} bytes")
            return None
        try:
            question = json.loads(self._body(int(written)))
        except TimeoutError:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"a question has {SOCKET_SECONDS:g} s to arrive")
            return None
        except (ValueError, RecursionError):
            question = None
        text = question.get("input") if isinstance(question, dict) else None
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            self._refuse(HTTPStatus.BAD_REQUEST, f'allowed is {{"input": text}}, of up to {LONGEST_TEXT} characters')
            return None
        return text

    def _body(self, length: int) -> bytes:
        """Returns so many bytes, fewer where the connection ends, or raises TimeoutError: also where they drip."""
        body, deadline = b"", time.monotonic() + SOCKET_SECONDS
        while len(body) < length and (part := self.rfile.read1(length - len(body))):
            body += part
            if time.monotonic() > deadline:
                raise TimeoutError
        return body

    def _answer(self, text: str) -> None:
        server = self.server
        if not server.one_at_a_time.acquire(timeout=server.seconds):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "the models are busy: try again")
            return
        try:
            example = server.think(text, server.seconds)
        except InputError:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the models cannot read that: {server.allowed}")
        except TimeoutError:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"this takes over {server.seconds:g} s: try something shorter")
        else:
            self._send(HTTPStatus.OK, "application/json", json.dumps(example, allow_nan=False).encode())
        finally:
            server.one_at_a_time.release()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(status, "application/json", json.dumps({"error": why}).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("X-Content-Type-Options", "nosniff"),
            ("Content-Security-Policy", "frame-ancestors 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what cannot be parsed without repeating any of it."""
        self.close_connection = True
        if not hasattr(self, "request_version"):
            self.request_version = "HTTP/1.0"
        self._refuse(HTTPStatus(code), "a request that this server does not know")

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the terminal is the user's."""
