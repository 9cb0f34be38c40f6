"""BufferArea: buffers pass in both directions, and a place outside is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from onward.serving.worker_processes.buffer_area import BufferArea, create_area, open_area

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")


@pytest.fixture
def sides() -> Iterator[tuple[BufferArea, BufferArea]]:
    server = create_area()
    assert server is not None
    yield server, open_area(server.file)
    server.close()


def test_buffers_pass_in_their_order(sides: tuple[BufferArea, BufferArea]) -> None:
    for writer, reader in (sides, sides[::-1]):
        given: list[Any] = [np.arange(5, dtype=np.uint8), b"", b"text", bytes(range(200))]
        places, rest = writer.put(given)
        assert rest == []
        found = list(reader.take(places, iter([])))
        assert [bytes(each) for each in found] == [bytes(each) for each in given]
        assert all(each.ctypes.data % 64 == 0 for each in found if each.base is not None)


def test_the_server_keeps_what_it_read(sides: tuple[BufferArea, BufferArea]) -> None:
    server, worker = sides
    places, _ = worker.put([b"first"])
    (found,) = server.take(places, iter([]))
    worker.put([b"later"])
    assert bytes(found) == b"first"


def test_a_buffer_that_does_not_fit_is_sent(sides: tuple[BufferArea, BufferArea]) -> None:
    server, worker = sides
    server._to_write = (0, 64)
    large = np.zeros(100, np.uint8)
    places, rest = server.put([b"small", large])
    assert places == [[0, 5], None] and len(rest) == 1
    small, found = worker.take(places, iter([large]))
    assert bytes(small) == b"small" and found is large


@pytest.mark.parametrize(
    "place", [[0, 8], [-8, 8], [1 << 40, 8], [1 << 27, -1], ["0", 8], [0.5, 1]]
)
def test_a_place_outside_is_refused(sides: tuple[BufferArea, BufferArea], place: object) -> None:
    with pytest.raises(ValueError, match="buffer position"):
        sides[0].take([place], iter([]))
