"""http_routes: every route but infer, over a real connection."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.serving.http_fakes import Running, running


async def _fail(request: Request) -> Response:
    raise KeyError("secret")


async def _home(request: Request) -> Response:
    return PlainTextResponse("home")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    extra = [Route("/fail", _fail), Route("/", _home)]
    with running(extra_routes=extra) as found:
        yield found


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v2", {"name": "onward", "version": "1", "extensions": ["binary_tensor_data"]}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/double/ready", {"name": "double", "ready": True}),
        ("/v2/models/double/versions/1/ready", {"name": "double", "ready": True}),
        ("/v2/models/double/config", {"name": "double", "max_batch_size": 8}),
        ("/v2/models/double/versions/1/config", {"name": "double", "max_batch_size": 8}),
        ("/v2/models/double/stats", {"model_stats": [{"name": "double", "version": "1"}]}),
        ("/v2/systemsharedmemory/status", []),
        ("/v2/cudasharedmemory/status", []),
    ],
)
def test_get(server: Running, path: str, expected: Any) -> None:
    status, headers, _ = server.ask("GET", path)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert server.ask_json("GET", path) == (200, expected)
    assert server.ask("HEAD", path)[0] == 200
    status, headers, _ = server.ask("DELETE", path)
    assert (status, headers["content-type"]) == (405, "application/json")
    assert "GET" in headers["allow"]


def test_metadata_and_lists(server: Running) -> None:
    _, metadata = server.ask_json("GET", "/v2/models/double/versions/1")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert len(server.ask_json("GET", "/v2/models/stats")[1]["model_stats"]) == 6
    assert "double" in server.ask_json("GET", "/v2/models")[1]["models"]
    assert server.ask_json("POST", "/v2/repository/index")[1][0]["state"] == "READY"
    assert server.ask("POST", "/v2/repository/index", b'{"ready": true}')[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/nowhere", b"", 404, "there is no route /nowhere"),
        ("GET", "/v2/models/none", b"", 404, "unknown model: 'none'"),
        ("GET", "/v2/models/double/versions/9", b"", 404, "unknown model"),
        ("GET", "/v2/models/none/ready", b"", 404, "unknown model"),
        ("GET", "/v2/models/hold/ready", b"", 503, "not ready"),
        ("GET", "/v2/models/none/stats", b"", 404, "unknown model"),
        ("POST", "/v2/models/double/generate", b"{}", 501, "does not generate text"),
        ("POST", "/v2/models/none/generate_stream", b"{}", 404, "unknown model"),
        ("POST", "/v2/repository/index", b"[", 400, "failed to parse"),
        ("POST", "/v2/repository/index", b"[]", 400, "not a JSON object"),
        ("POST", "/v2/repository/index", b'{"ready": 1}', 400, "Unable to parse 'ready'"),
        ("POST", "/v2/repository/models/none/load", b"", 400, "failed to load 'none'"),
        ("POST", "/v2/repository/models/none/unload", b"", 404, "unknown model"),
        ("POST", "/v2/repository/models/double/load", b'{"parameters": 1}', 400, "'parameters'"),
        ("POST", "/v2/repository/models/double/load", b'{"parameters": {"a": "b"}}', 400, "'a'"),
        ("POST", "/v2/repository/models/double/load", b'{"parameters": {"config": 1}}', 400,
         "not text"),
        ("POST", "/v2/repository/models/double/load", b'{"parameters": {"file:1": "?"}}', 400,
         "not base64"),
        ("POST", "/v2/repository/models/double/unload", b'{"parameters": 1}', 400, "unload_dep"),
        ("POST", "/v2/repository/models/double/unload", b'{"parameters": {"unload_dependents": 1}}',
         400, "unload_dep"),
        ("POST", "/v2/systemsharedmemory/region/r/register", b"{}", 400, "'key'"),
        ("POST", "/v2/systemsharedmemory/region/r/register", b'{"key": "k", "byte_size": -1}', 400,
         "0 or more"),
        ("GET", "/v2/systemsharedmemory/region/none/status", b"", 400, "Unable to find"),
        ("GET", "/v2/cudasharedmemory/region/r/status", b"", 404, "Unable to find"),
        ("POST", "/v2/cudasharedmemory/region/r/register", b"{}", 501, "CUDA"),
        ("POST", "/v2/trace/setting", b'{"trace_level": ["TIMESTAMPS"]}', 501, "OpenTelemetry"),
        ("GET", "/v2/models/none/trace/setting", b"", 404, "unknown model"),
        ("POST", "/v2/logging", b'{"log_file": "a"}', 400, "log file"),
        ("GET", "/%ff%00", b"", 404, "no route"),
    ],
)  # fmt: skip
def test_errors_are_json(
    server: Running, method: str, path: str, body: bytes, status: int, text: str
) -> None:
    found, headers, answer = server.ask(method, path, body)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert text in orjson.loads(answer)["error"]


def test_load_and_unload(server: Running) -> None:
    data = base64.b64encode(b"\x00\xff").decode()
    parameters = {"config": '{"a": 1}', "file:1/model.onnx": data}
    path = "/v2/repository/models/double"
    assert server.ask_json("POST", f"{path}/load", {"parameters": parameters})[0] == 200
    assert server.core.loaded["double"] == {"config": '{"a": 1}', "file:1/model.onnx": b"\x00\xff"}
    assert server.ask_json("POST", f"{path}/load", {"parameters": {"config": {"a": 1}}})[0] == 200
    assert server.core.loaded["double"] == {"config": '{"a":1}'}
    body = {"parameters": {"unload_dependents": True}}
    assert server.ask_json("POST", f"{path}/unload", body)[0] == 200
    assert server.core.loaded["double"] is True


def test_model_control_can_be_forbidden() -> None:
    with running(allow_model_control=False) as server:
        status, body = server.ask_json("POST", "/v2/repository/models/double/load", {})
    assert status == 400
    assert body["error"].startswith("explicit model load / unload is not allowed")


def test_shared_memory_regions(server: Running) -> None:
    folder = "/v2/systemsharedmemory"
    body = {"key": "/k", "offset": 0, "byte_size": 64}
    for name in ("a", "b"):
        assert server.ask_json("POST", f"{folder}/region/{name}/register", body)[0] == 200
    assert [each["name"] for each in server.ask_json("GET", f"{folder}/status")[1]] == ["a", "b"]
    assert server.ask_json("POST", f"{folder}/region/a/unregister")[0] == 200
    assert [each["name"] for each in server.ask_json("GET", f"{folder}/status")[1]] == ["b"]
    assert server.ask_json("POST", f"{folder}/unregister")[0] == 200
    assert server.ask_json("POST", "/v2/cudasharedmemory/unregister")[0] == 200
    assert server.ask_json("GET", f"{folder}/status") == (200, [])


def test_a_server_that_is_not_ready_says_so(server: Running) -> None:
    server.core.is_ready = False
    try:
        status, body = server.ask_json("GET", "/v2/health/ready")
    finally:
        server.core.is_ready = True
    assert (status, body["ready"], body["error"]) == (503, False, "the server is not ready")


def test_trace_and_log_settings(server: Running) -> None:
    assert server.ask_json("GET", "/v2/trace/setting")[1]["trace_level"] == ["OFF"]
    assert server.ask_json("POST", "/v2/trace/setting", {"trace_level": ["OFF"]})[0] == 200
    assert server.ask_json("GET", "/v2/models/double/trace/setting")[0] == 200
    assert server.ask_json("POST", "/v2/logging", {})[1] == server.ask_json("GET", "/v2/logging")[1]


def test_metrics_and_pages(server: Running) -> None:
    status, headers, body = server.ask("GET", "/metrics")
    assert (status, body) == (200, b"onward_up 1\n")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    status, headers, body = server.ask("GET", "/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"http://" not in body
    assert b"https://" not in body
    assert server.ask("GET", "/")[2] == b"home"
    with running() as bare:
        assert bare.ask("GET", "/")[1]["location"] == "/docs"


def test_an_unexpected_error_is_logged_and_has_no_details(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "onward.serving"):
        status, body = server.ask_json("GET", "/fail")
        server.call(lambda: None)  # it is logged after the answer
    assert (status, body["error"]) == (500, "internal error of the server: KeyError")
    assert len(caplog.records) == 1
    assert "secret" in caplog.text
