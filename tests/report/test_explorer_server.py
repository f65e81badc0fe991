"""The server answers its own page on this machine, and nobody else; nothing that it is sent breaks it."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopt.errors import InputError
from loopt.report.explorer import LONGEST_TEXT
from loopt.report.explorer.server import LONGEST_BODY, LOOPBACK, ExplorerServer

PAGE = "<!doctype html><title>page</title>"
NASTY = "<script>alert(1)</script>"


def think(text: str, seconds: float) -> dict[str, Any]:
    if "slow" in text:
        raise TimeoutError
    if not text.isalpha():
        raise InputError(f"{text!r}: allowed are letters")
    return {"title": "typed", "length": len(text)}


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    with ExplorerServer(0, PAGE, think, "allowed are letters", seconds=5.0) as one:
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield one
        one.shutdown()


def ask(
    server: ExplorerServer,
    method: str = "POST",
    path: str = "/think",
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection(LOOPBACK, server.server_port, timeout=10)
    sent = {"Origin": server.address.rstrip("/"), "Content-Type": "application/json"}
    sent |= headers or {}
    connection.request(method, path, body, {name: value for name, value in sent.items() if value})
    reply = connection.getresponse()
    return reply.status, reply.read(), dict(reply.headers)


def typed(text: str) -> bytes:
    return json.dumps({"input": text}).encode()


def test_the_page_is_served_and_a_question_answered(server: ExplorerServer) -> None:
    status, body, headers = ask(server, "GET", "/")
    assert (status, body) == (200, PAGE.encode())
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    status, body, headers = ask(server, body=typed("abc"))
    assert (status, json.loads(body)) == (200, {"title": "typed", "length": 3})
    assert headers["Content-Type"] == "application/json"


def test_it_is_bound_to_loopback_only(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
    ids=str,
)
def test_other_pages_and_other_names_are_refused(server: ExplorerServer, headers: dict[str, str]) -> None:
    assert ask(server, body=typed("abc"), headers=headers)[0] == 403
    if "Host" in headers:  # a page of another site whose name was made to mean this machine
        assert ask(server, "GET", "/", headers=headers)[0] == 403


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (typed("a b"), {}, 400),
        (typed(NASTY), {}, 400),
        (typed("slow"), {}, 503),
        (typed("a" * (LONGEST_TEXT + 1)), {}, 400),
        (b"{" * 5000, {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[]", {}, 400),
        (b'{"input": 3}', {}, 400),
        (b"null", {}, 400),
        (typed("abc"), {"Content-Type": "text/plain"}, 415),
        (typed("abc"), {"Content-Length": "-3"}, 411),
        (typed("abc"), {"Content-Length": "3e3"}, 411),
        (typed("abc"), {"Content-Length": "9" * 30}, 411),
        (typed("abc"), {"Content-Length": str(LONGEST_BODY + 1)}, 413),
    ],
    ids=str,
)
def test_what_is_no_question_is_refused(
    server: ExplorerServer, body: bytes, headers: dict[str, str], status: int
) -> None:
    found, reply, kept = ask(server, body=body, headers=headers)
    assert found == status
    assert json.loads(reply)["error"]
    assert kept["Content-Type"] == "application/json"
    assert NASTY.encode() not in reply


@pytest.mark.parametrize("path", ["/think", "/../../etc/passwd", f"/{NASTY}", "/think/"])
def test_there_is_nothing_else(server: ExplorerServer, path: str) -> None:
    for method in ("GET", "POST") if path != "/think" else ("GET",):
        status, body, _ = ask(server, method, path, typed("abc") if method == "POST" else None)
        assert status == 404
        assert b"script" not in body


@given(data=st.binary(max_size=300))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_survived(server: ExplorerServer, data: bytes) -> None:
    for sent in (data, b"GET " + data, b"POST /think HTTP/1.1\r\nHost: " + data + b"\r\n\r\n"):
        with socket.create_connection((LOOPBACK, server.server_port), timeout=5) as one:
            one.sendall(sent)
            one.shutdown(socket.SHUT_WR)
            reply = b""
            while part := one.recv(4096):
                reply += part
            assert not reply or reply.startswith(b"HTTP/1.0 ") or b'"error"' in reply
            assert b" 200 " not in reply[:20]
    assert ask(server, "GET", "/")[0] == 200


@given(text=st.text(max_size=80))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_gets_an_answer_or_a_refusal(server: ExplorerServer, text: str) -> None:
    status, body, _ = ask(server, body=typed(text))
    assert status == (503 if "slow" in text else 200 if text.isalpha() else 400)
    assert "title" in json.loads(body) or "error" in json.loads(body)


def test_a_question_that_drips_in_is_given_up(server: ExplorerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopt.report.explorer.server.SOCKET_SECONDS", 0.3)
    head = f"POST /think HTTP/1.0\r\nHost: {LOOPBACK}:{server.server_port}\r\nOrigin: {server.address.rstrip('/')}\r\n"
    with socket.create_connection((LOOPBACK, server.server_port), timeout=5) as one:
        one.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n".encode())
        for _ in range(8):
            one.sendall(b" ")
            time.sleep(0.1)
            if select.select([one], [], [], 0)[0]:
                break
        assert one.recv(4096).startswith(b"HTTP/1.0 408 ")


def test_many_ask_at_once_while_others_say_nothing(server: ExplorerServer) -> None:
    silent = [socket.create_connection((LOOPBACK, server.server_port)) for _ in range(10)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: ask(server, body=typed("a" * i)), range(1, 41)))
    assert [json.loads(body)["length"] for _, body, _ in found] == list(range(1, 41))
    for one in silent:
        one.close()


def test_too_many_connections_are_closed_and_then_there_is_room_again(server: ExplorerServer) -> None:
    crowd = [socket.create_connection((LOOPBACK, server.server_port)) for _ in range(40)]
    time.sleep(0.2)
    crowd[-1].settimeout(5)
    assert crowd[-1].recv(4096).startswith(b"HTTP/1.0 503 ")
    for one in crowd:
        one.close()
    for _ in range(50):
        try:
            assert ask(server, "GET", "/")[0] == 200
            return
        except (OSError, AssertionError):
            time.sleep(0.1)
    pytest.fail("no room again")
