"""A tiny server, and both clients behind one blocking interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import onward
from tests.serving.client.tiny_server import TinyServer


@pytest.fixture
def server() -> Iterator[TinyServer]:
    made = TinyServer()
    yield made
    made.stop()


@pytest.fixture
def two_servers() -> Iterator[list[TinyServer]]:
    made = [TinyServer(), TinyServer()]
    yield made
    for each in made:
        each.stop()


class Blocking:
    """An AsyncClient whose methods block, in a loop of its own."""

    def __init__(self, *urls: str, sleep: Callable[[float], None], **options: Any) -> None:
        async def pause(seconds: float) -> None:
            sleep(seconds)

        self._loop = asyncio.new_event_loop()
        self._client = onward.AsyncClient(*urls, sleep=pause, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._loop.run_until_complete(method(*arguments, **options))

        return call

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


@pytest.fixture(params=[onward.Client, Blocking], ids=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(*urls: Any, waits: list[float] | None = None, **options: Any) -> Any:
        sleep = (waits if waits is not None else []).append
        made.append(request.param(*urls, sleep=sleep, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
