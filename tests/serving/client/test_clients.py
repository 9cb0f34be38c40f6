"""Client and AsyncClient against a real socket: answers, retries, deadlines, several servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import (
    ModelNotFound,
    OptionError,
    RequestExpired,
    ServerOverloaded,
    ServerUnreachable,
)

Connect = Callable[..., Any]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
BUSY = (503, {"Retry-After": "1"}, b'{"error": "too many requests wait"}')


def test_a_model_is_run_over_one_connection(server: Any, connect: Connect) -> None:
    client = connect(server.url)
    for _ in range(5):
        np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)
    assert server.connections == 1
    large = np.ones((512, 2048), np.float32)  # 4 MiB
    np.testing.assert_array_equal(client.infer("double", {"x": large})["y"], 2 * large)


def test_options_are_sent(server: Any, connect: Connect) -> None:
    client = connect(server.url, api_key="secret")
    client.infer(
        "double", {"x": X}, ["y"], version="3", timeout=30, priority=2, request_id="r",
        sequence_id=5, sequence_start=True, parameters={"a": 1},
    )  # fmt: skip
    (path, headers, body) = server.seen[0]
    assert path == "POST /v2/models/double/versions/3/infer"
    assert headers["authorization"] == "Bearer secret"
    header = json.loads(body[: int(headers["inference-header-content-length"])])
    assert header["id"] == "r" and header["outputs"][0]["name"] == "y"
    parameters = header["parameters"]
    assert 0 < parameters.pop("timeout") <= 30_000_000
    assert parameters == {
        "binary_data_output": True, "a": 1, "priority": 2, "sequence_id": 5,
        "sequence_start": True, "sequence_end": False,
    }  # fmt: skip


def test_lists_are_sent_in_the_models_type(server: Any, connect: Connect) -> None:
    client = connect(server.url)
    for _ in range(2):
        assert client.infer("double", {"x": [1, 2.5]})["y"].tolist() == [2, 5]
    assert [path for path, _, _ in server.seen].count("GET /v2/models/double") == 1


def test_the_other_routes(server: Any, connect: Connect) -> None:
    client = connect(server.url)
    assert client.metadata() == {"path": "/v2"}
    assert client.config("double") == {"path": "/v2/models/double/config"}
    assert client.statistics() == {"path": "/v2/models/stats"}
    assert client.models() == [{"name": "double"}]
    assert client.ready() and client.ready("double")
    assert client.load("double", files={"1/model.onnx": b"x"}) is None
    assert client.unload("double", with_dependents=True) is None
    assert not client.ready("none")
    with pytest.raises(ModelNotFound, match="no model none"):
        client.metadata("none")


def test_a_busy_server_is_asked_again(server: Any, connect: Connect) -> None:
    waits: list[float] = []
    client = connect(server.url, waits=waits, random=lambda: 0.0)
    server.script = [BUSY, BUSY]
    np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)
    assert waits == [1.0, 1.0] and server.connections == 1


def test_a_call_that_may_not_wait_raises_the_servers_error(server: Any, connect: Connect) -> None:
    server.script = [BUSY]
    with pytest.raises(ServerOverloaded, match="too many requests wait") as caught:
        connect(server.url, retries=0).infer("double", {"x": X})
    assert caught.value.retry_after == 1.0


def test_a_dropped_connection_is_replaced(server: Any, connect: Connect) -> None:
    client = connect(server.url)
    client.infer("double", {"x": X})
    server.script = ["drop"]
    np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)


def test_a_part_of_a_sequence_is_not_sent_twice(server: Any, connect: Connect) -> None:
    server.script = ["drop"]
    with pytest.raises(ServerUnreachable, match="the connection failed"):
        connect(server.url).infer("double", {"x": X}, sequence_id=1)
    assert len(server.seen) == 1


def test_a_timeout_ends_the_call(server: Any, connect: Connect) -> None:
    server.script = ["hang"]
    client = connect(server.url)
    with pytest.raises(RequestExpired, match=r"did not answer within 0\.2 s"):
        client.infer("double", {"x": X}, timeout=0.2)
    server.released.set()
    np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)


def test_several_servers_share_the_requests(two_servers: list[Any], connect: Connect) -> None:
    first, second = two_servers
    client = connect([first.url, second.url])
    for _ in range(6):
        client.infer("double", {"x": X})
    assert len(first.seen) == len(second.seen) == 3
    client.load("double")
    assert len(first.seen) == len(second.seen) == 4


def test_a_server_that_ended_is_replaced_by_the_other(server: Any, connect: Connect) -> None:
    waits: list[float] = []
    client = connect("http://127.0.0.1:9", server.url, waits=waits)  # nothing listens there
    for _ in range(4):
        np.testing.assert_array_equal(client.infer("double", {"x": X})["y"], 2 * X)
    assert waits == []


def test_no_server_is_an_error(connect: Connect) -> None:
    client = connect("http://127.0.0.1:9", retries=1)
    assert not client.ready()
    with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:9: cannot connect"):
        client.infer("double", {"x": X})
    with pytest.raises(OptionError, match="needs the address of a server"):
        onward.Client()


@pytest.mark.parametrize(
    "option", [{"timeout": 0}, {"retries": -1}, {"api_key": "a\r\nb"}], ids=str
)
def test_wrong_options_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        onward.Client("http://localhost:8000", **option)


def test_threads_share_a_client(server: Any) -> None:
    wrong: list[float] = []

    def send(value: float) -> None:
        for _ in range(20):
            x = np.full(10, value, np.float32)
            if not np.array_equal(client.infer("double", {"x": x})["y"], 2 * x):
                wrong.append(value)

    with onward.Client(server.url) as client:
        threads = [threading.Thread(target=send, args=(float(n),)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
    assert not wrong and server.connections <= 4
