"""The socket transport: tokens, malformed requests, connections that break."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onward.distributed.parameter_server.parameter_server import ParameterServer
from onward.distributed.parameter_server.server_worker import ParameterServerWorker
from onward.distributed.parameter_server.socket_connection import SocketConnection
from onward.distributed.parameter_server.socket_handshake import check_token, greet_server
from onward.errors import DistributedError, OptionError, PeerLost
from tests.distributed.parameter_server.server_cases import (
    GUARD,
    TOKEN,
    open_session,
    parameters_of,
    session_of,
)
from tests.sessions.training.small import batches


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with ParameterServer(open_session()) as opened:
        yield opened


class BreakingProxy:
    """Passes bytes between a worker and a server, and loses some of the answers."""

    def __init__(self, address: str, losing: set[int]) -> None:
        host, port = address.split(":")
        self._target, self._losing = (host, int(port)), losing
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.answers = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        """One connection after the other, as the worker makes them."""
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            with near, far, contextlib.suppress(OSError, EOFError):
                self._pass_on(near, far)

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        near.sendall(read(far, 9 + 32))  # the greeting
        far.sendall(read(near, 64))
        near.sendall(read(far, 32))
        while True:
            far.sendall(read_message(near))
            answer = read_message(far)
            self.answers += 1
            if self.answers in self._losing:
                return
            near.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(GUARD)


def read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def read_message(source: socket.socket) -> bytes:
    start = read(source, 8)
    text = read(source, struct.unpack("<Q", start)[0])
    return start + text + read(source, sum(json.loads(text)["buffers"]))


def test_lost_answers_change_nothing(server: ParameterServer) -> None:
    """Answers to a join, to pulls and to pushes get lost: each batch is used exactly once."""
    data = batches(12)
    proxy = BreakingProxy(server.listen(TOKEN), losing={1, 3, 5, 8, 9, 10, 15, 20})
    worker = ParameterServerWorker(open_session(), proxy.address, token=TOKEN)
    worker.train(data)
    proxy.close()
    connection = worker._shards[0]._connection
    assert isinstance(connection, SocketConnection) and connection.reconnected == 8
    assert server.counts["repeated"] >= 1  # pushes that had been applied
    assert server.version == worker.counts["applied"] == 12
    alone = open_session()
    for feeds in data:
        alone.step(feeds)
    for name, tensor in parameters_of(session_of(server)).items():
        np.testing.assert_allclose(tensor, parameters_of(alone)[name], rtol=0, atol=1e-6)


def test_another_token_is_refused_on_both_sides(
    server: ParameterServer, caplog: pytest.LogCaptureFixture
) -> None:
    address = server.listen(TOKEN)
    with pytest.raises(DistributedError, match="has another token\ngive the worker the token"):
        ParameterServerWorker(open_session(), address, token="another token")
    assert server.workers == []
    with pytest.raises(OptionError, match="must be a text of 8 characters or more"):
        ParameterServerWorker(open_session(), address, token="short")
    with pytest.raises(OptionError, match="already listens on"):
        server.listen(TOKEN)


def test_a_stranger_is_not_a_parameter_server() -> None:
    stranger = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{stranger.getsockname()[1]}"

    def greet() -> None:
        near, _ = stranger.accept()
        near.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 3)
        near.close()

    thread = threading.Thread(target=greet)
    thread.start()
    with pytest.raises(DistributedError, match="is not a parameter server"):
        SocketConnection(address, TOKEN).ask({"do": "join"}, {})
    thread.join(GUARD)
    stranger.close()


def greeted(address: str) -> socket.socket:
    host, port = address.split(":")
    opened = socket.create_connection((host, int(port)), timeout=GUARD)
    greet_server(opened, check_token(TOKEN), address)
    return opened


def message(header: Any) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 16,
        message(b"not json"),
        message([1]),
        message({"buffers": [1 << 60]}),
        message({"buffers": [], "tensors": 3}),
        message({"buffers": [], "tensors": {"w": {"kind": "none"}}}),
        message({"buffers": [4], "tensors": {"w": {"kind": "tensor", "dtype": "float32",
                                                   "shape": [9]}}}) + b"0000",
        message(pickle.dumps({"do": "join"})),
    ],
    ids=["length", "json", "list", "huge", "tensors", "none", "shape", "pickle"],
)  # fmt: skip
def test_malformed_requests_end_only_their_connection(
    server: ParameterServer, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    address = server.listen(TOKEN)
    with caplog.at_level(logging.WARNING, "onward"), greeted(address) as opened:
        opened.sendall(data)
        with contextlib.suppress(ConnectionResetError):  # bytes that the server did not read
            assert opened.recv(1) == b""
    assert "a malformed request was refused" in caplog.text
    ParameterServerWorker(open_session(), address, token=TOKEN).train(batches(1))
    assert server.version == 1


def test_a_request_that_is_wrong_is_an_error_of_the_worker(server: ParameterServer) -> None:
    connection = SocketConnection(server.listen(TOKEN), TOKEN)
    with pytest.raises(DistributedError, match="not a request to a parameter server"):
        connection.ask({"do": "fly", "worker": "a"}, {})
    reply, _ = connection.ask({"do": "join", "worker": "a"}, {})  # the connection goes on
    assert set(reply["parameters"]) == {"w1", "b1", "w2", "b2"}
    connection.end({"do": "leave", "worker": "a"})
    assert server.workers == []


def test_a_server_that_is_gone(server: ParameterServer) -> None:
    address = server.listen(TOKEN)
    pauses: list[float] = []
    connection = SocketConnection(address, TOKEN, patience=0.3, pause=pauses.append)
    connection.ask({"do": "join", "worker": "a"}, {})
    server.close()
    with pytest.raises(PeerLost, match=f"at {address} did not answer for 0.3 s") as caught:
        connection.ask({"do": "pull", "worker": "a"}, {})
    assert "it continues from its checkpoint" in str(caught.value)
    assert pauses[:3] == [0.05, 0.1, 0.2]
    connection.end({"do": "leave", "worker": "a"})


@pytest.mark.parametrize("address", ["host", "host:", ":80", "host:99999", 80])
def test_addresses_are_checked(address: Any) -> None:
    with pytest.raises(OptionError, match="must be host:port"):
        SocketConnection(address, TOKEN)


def test_an_address_of_ipv6(server: ParameterServer) -> None:
    try:
        address = server.listen(TOKEN, host="::1")
    except DistributedError:
        pytest.skip("this machine has no IPv6")
    assert address.startswith("[::1]:")
    ParameterServerWorker(open_session(), address, token=TOKEN).train(batches(1))
    assert server.version == 1


def test_a_port_that_is_taken(server: ParameterServer) -> None:
    port = int(server.listen(TOKEN).split(":")[1])
    with (
        ParameterServer(open_session()) as other,
        pytest.raises(DistributedError, match=f"cannot listen on 127.0.0.1:{port}"),
    ):
        other.listen(TOKEN, port=port)
