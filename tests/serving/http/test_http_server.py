"""http_server: ports, TLS, keys, draining."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from onward.errors import OptionError
from onward.serving.http.http_server import HttpServer
from tests.serving.http_fakes import GUARD, floats, running

REQUEST = {"inputs": [floats([1, 2, 3, 4])]}
INFER = "/v2/models/double/infer"


def test_the_server_runs_on_the_loop_of_the_standard_library() -> None:
    with running(new_loop=asyncio.new_event_loop, max_body_bytes=1 << 16) as server:
        assert server.ask_json("POST", INFER, REQUEST)[0] == 200
        assert server.ask_json("GET", "/v2/health/ready") == (200, {"ready": True})
        assert server.ask("POST", INFER, bytes(1 << 20))[0] == 413


def test_a_port_that_is_taken_is_named() -> None:
    with running() as first:
        message = f"port {first.port}: the port is in use"
        with pytest.raises(OSError, match=message) as raised, running(http_port=first.port):
            pass
        assert raised.value.errno == errno.EADDRINUSE


def test_a_server_that_is_not_started_has_no_port() -> None:
    with running() as server:
        idle = server.call(
            lambda: HttpServer(server.core, server.settings, access=server.server._access)
        )
        with pytest.raises(RuntimeError, match="not started"):
            _ = idle.port


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with running(tls_certificate=str(certificate), tls_key=str(key)) as server:
        assert server.server.scheme == "https"
        context = ssl.create_default_context(cafile=certificate)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=GUARD, context=context
        )
        for body in (orjson.dumps(REQUEST), b"{"):
            connection.request("POST", INFER, body)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == (200 if len(body) > 1 else 400)
        connection.close()
    wrong = running(tls_certificate=str(key), tls_key=str(key))
    with pytest.raises(OptionError, match="must be a matching pair of PEM files"), wrong:
        pass


def test_keys_are_asked_for() -> None:
    with running(api_keys=["k"], admin_keys=["root"]) as server:
        body = orjson.dumps(REQUEST)
        for path in (INFER, "/v2/repository/index"):
            status, headers, answer = server.ask("POST", path, body)
            assert status == 401
            assert headers["www-authenticate"].startswith("Bearer")
            assert "no valid API key" in orjson.loads(answer)["error"]
            assert server.ask("POST", path, body, {"X-API-Key": "k"})[0] == 200
        bearer = {"Authorization": "Bearer k"}
        assert server.ask("GET", "/docs")[0] == 401
        assert server.ask("GET", "/docs", headers=bearer)[0] == 200
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        for method, path in (("GET", "/metrics"), ("POST", "/v2/repository/models/double/load")):
            assert server.ask(method, path, headers=bearer)[0] == 401
            assert server.ask(method, path, headers={"X-API-Key": "root"})[0] == 200
        encoded = "/v2/repository/models/double/%6coad"
        assert server.ask("POST", encoded, headers=bearer)[0] == 401


def test_the_rate_is_limited_by_key() -> None:
    with running(rate_limit=1) as server:
        assert server.ask_json("POST", INFER, REQUEST)[0] == 200
        status, headers, _ = server.ask("POST", INFER, orjson.dumps(REQUEST))
        assert (status, headers["retry-after"]) == (429, "1")
        assert "connection" not in headers
        assert server.ask("GET", "/v2")[0] == 429
        server.now += 1
        assert server.ask_json("POST", INFER, REQUEST)[0] == 200


def test_the_admin_port_has_the_admin_routes_and_no_infer() -> None:
    load = "/v2/repository/models/double/load"
    with running(admin_port=0, admin=True) as server:
        assert server.ask("GET", "/metrics")[0] == 200
        assert server.ask("POST", load)[0] == 200
        assert server.ask_json("POST", "/v2/logging", {"log_info": True})[0] == 200
        assert server.ask_json("POST", INFER, REQUEST)[0] == 404
        assert (
            INFER.replace("double", "{model}")
            not in server.ask_json("GET", "/openapi.json")[1]["paths"]
        )
    with running(admin_port=0) as server:
        assert server.ask("GET", "/metrics")[0] == 404
        assert server.ask("POST", load)[0] == 404
        assert server.ask("GET", "/v2/logging")[0] == 200
        status, body = server.ask_json("POST", "/v2/logging", {"log_info": False})
        assert (status, body["error"]) == (
            501, "the log's settings cannot be changed on this port\nuse the admin port, 0"
        )  # fmt: skip
        assert server.ask_json("POST", INFER, REQUEST)[0] == 200


def test_a_draining_server_answers_what_it_took() -> None:
    with running() as server:
        busy, idle = server.connect(), server.connect()
        idle.request("GET", "/v2/health/ready")
        assert idle.getresponse().read() == b'{"ready":true}'
        busy.request("POST", "/v2/models/hold/infer", orjson.dumps(REQUEST))
        assert server.core.arrived.wait(GUARD)
        server.call(server.server.stop_accepting)
        with pytest.raises(ConnectionRefusedError):
            server.socket()
        idle.request("GET", "/v2/health/ready")  # a request on an open connection is still served
        answer = idle.getresponse()
        assert (answer.status, answer.getheader("connection")) == (503, "close")
        assert "shutting down" in orjson.loads(answer.read())["error"]
        stopped = threading.Thread(target=lambda: server.call(lambda: server.server.stop(GUARD)))
        stopped.start()
        server.release()
        answer = busy.getresponse()
        assert (answer.status, answer.getheader("connection")) == (200, "close")
        assert orjson.loads(answer.read())["model_name"] == "hold"
        stopped.join(GUARD)
        assert not stopped.is_alive()
        idle.close()
        busy.close()


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_draining_server_answers_clients_that_were_not_accepted_yet(new_loop: Any) -> None:
    with running(new_loop=new_loop) as server:
        clients: list[socket.socket] = []

        def connect_and_stop() -> Any:
            for _ in range(3):  # in the loop's thread, which cannot accept them meanwhile
                clients.append(server.socket())
                body = orjson.dumps(REQUEST)
                head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
                clients[-1].sendall(head.encode() + body)
            return server.server.stop(GUARD)

        server.call(connect_and_stop)
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
            client.close()


def test_a_draining_server_cuts_off_what_takes_too_long() -> None:
    with running() as server:
        busy = server.connect()
        busy.request("POST", "/v2/models/hold/infer", orjson.dumps(REQUEST))
        assert server.core.arrived.wait(GUARD)
        server.call(lambda: server.server.stop(0))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            busy.getresponse()
        assert server.core.cancelled.wait(GUARD)
        busy.close()


def test_a_draining_server_closes_idle_connections_and_streams() -> None:
    async def stream(request: Request) -> StreamingResponse:
        async def events():  # type: ignore[no-untyped-def]
            yield b"data: 1\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    with running(extra_routes=[Route("/events", stream)]) as server:
        watching, idle = server.connect(), server.connect()
        idle.request("GET", "/v2/health/live")
        idle.getresponse().read()
        watching.request("GET", "/events")
        answer = watching.getresponse()
        assert answer.readline() == b"data: 1\n"
        server.call(lambda: server.server.stop(GUARD))
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        idle.close()
        watching.close()
