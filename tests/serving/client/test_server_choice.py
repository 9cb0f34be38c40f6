"""ServerChoice: the least busy server, and those that fail."""

from __future__ import annotations

import pytest

from onward.errors import OptionError
from onward.serving.client.server_choice import ServerChoice, parse_url


def choice_of(count: int) -> ServerChoice:
    return ServerChoice([parse_url(f"http://host{number}:8000") for number in range(count)])


def test_the_least_busy_server_is_picked() -> None:
    choice = choice_of(3)
    for server, busy in zip(choice.servers, (2, 0, 1)):
        server.outstanding = busy
    assert choice.pick(0.0) is choice.servers[1]
    assert choice.pick(0.0, avoided={choice.servers[1]}) is choice.servers[2]


def test_idle_servers_take_turns() -> None:
    choice = choice_of(3)
    assert {choice.pick(0.0).url for _ in range(3)} == {each.url for each in choice.servers}


def test_a_failing_server_is_left_out_and_tried_again() -> None:
    choice = choice_of(2)
    bad, good = choice.servers
    choice.on_failure(bad, 0.0)
    assert all(choice.pick(0.4) is good for _ in range(4))
    good.outstanding = 5
    assert choice.pick(0.5) is bad  # its time has come
    bad.outstanding = 1
    assert choice.pick(0.5) is good  # with one request at a time
    bad.outstanding = 0
    choice.on_failure(bad, 0.6)
    assert choice.pick(1.5) is good  # twice as long
    assert choice.pick(1.6) is bad
    choice.on_answer(bad)
    bad.outstanding = 1
    assert choice.pick(1.6) is bad


def test_without_another_server_a_failing_one_is_tried() -> None:
    choice = choice_of(2)
    choice.on_failure(choice.servers[0], 0.0)
    choice.on_failure(choice.servers[1], 0.1)
    assert choice.pick(0.2) is choice.servers[0]
    assert choice.pick(0.2, avoided={choice.servers[0]}) is choice.servers[1]


def test_addresses() -> None:
    server = parse_url("https://example.com/models/")
    assert (server.host, server.port, server.is_tls, server.prefix) == (
        "example.com", 443, True, "/models",
    )  # fmt: skip
    assert parse_url("http://[::1]:90").host == "::1"
    server = parse_url("grpcs://host")
    assert server.is_grpc and server.is_tls and server.port == 8001
    for wrong in ("", "ftp://host", "http://", "http://host:notaport"):
        with pytest.raises(OptionError, match="is not the address of a server\ngive one such as"):
            parse_url(wrong)
