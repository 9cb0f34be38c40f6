"""Workers: requests, progress, errors, prints, timeouts and deaths of a child process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import DeadlineExceeded, FeedError, NodeFailed, ProviderError, WorkerDied
from onward.workers import messages
from onward.workers.worker import Worker

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")

CHILD = """
import os, sys, threading
from onward.errors import FeedError, NodeFailed
from onward.workers import messages
from onward.workers.request_loop import serve

def double(request):
    print("engines print", flush=True)
    os.write(1, b"even past Python\\n")
    buffers = []
    array = messages.unpack(request.header["array"], request.buffers)
    return {"array": messages.pack(array * 2, buffers)}, buffers

def count(request):
    for number in range(3):
        request.send_progress(number=number)
    return {"counted": True}, []

def fail(request):
    kind = request.header["kind"]
    if kind == "NodeFailed":
        raise NodeFailed("no kernel", "Conv")
    raise {"FeedError": FeedError, "ZeroDivisionError": ZeroDivisionError}[kind]("wrong\\nfix it")

def wait(request):
    stopped = threading.Event()
    request.on_interrupt(stopped.set)
    request.send_progress(number=0)
    stopped.wait()
    return {"stopped": True}, []

def die(request):
    sys.stderr.write("first line\\nlast line\\n")
    sys.stderr.flush()
    os._exit(7)

def lie(request):
    os.write(request._replies.fileno(), b"\\xff" * 100)
    return {}, []

serve({"double": double, "count": count, "fail": fail, "wait": wait, "die": die, "lie": lie})
"""


@pytest.fixture
def worker() -> Iterator[Worker]:
    package = str(Path(onward.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {package!r})\n{CHILD}"
    with Worker("", "the child", arguments=("-c", code)) as made:
        yield made


def test_buffers_pass_and_prints_do_not_mix_with_messages(worker: Worker) -> None:
    for number in range(2):
        buffers: list[Any] = []
        packed = messages.pack(np.full(3, number, np.float32), buffers)
        reply, data = worker.ask({"do": "double", "array": packed}, buffers)
        assert messages.unpack(reply["array"], data).tolist() == [2 * number] * 3


def test_progress_arrives_before_the_reply(worker: Worker) -> None:
    numbers: list[int] = []
    reply, _ = worker.ask({"do": "count"}, progress=lambda number: numbers.append(number))
    assert reply["counted"] and numbers == [0, 1, 2]
    assert worker.ask({"do": "count"})[0]["counted"]


def test_errors_keep_their_class_and_text(worker: Worker) -> None:
    with pytest.raises(FeedError, match=r"^wrong\nfix it$"):
        worker.ask({"do": "fail", "kind": "FeedError"})
    with pytest.raises(NodeFailed, match="no kernel") as caught:
        worker.ask({"do": "fail", "kind": "NodeFailed"})
    assert caught.value.op_type == "Conv"
    with pytest.raises(ProviderError, match=r"^ZeroDivisionError: wrong"):
        worker.ask({"do": "fail", "kind": "ZeroDivisionError"})
    assert worker.alive


def test_a_request_that_is_not_json_leaves_the_child_alone(worker: Worker) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        worker.ask({"do": object()})


@on_posix
def test_an_interrupt_stops_the_request(worker: Worker) -> None:
    def interrupt(number: int) -> None:
        worker.interrupt(kill_after=None)

    assert worker.ask({"do": "wait"}, progress=interrupt)[0]["stopped"]
    assert worker.ask({"do": "count"})[0]["counted"]


def test_a_timeout_kills_the_child(worker: Worker) -> None:
    with pytest.raises(DeadlineExceeded, match=r"the child took longer than 0\.05 s"):
        worker.ask({"do": "wait"}, timeout=0.05)
    assert not worker.alive


def test_a_death_names_the_exit_code_and_the_last_line(worker: Worker) -> None:
    expected = "the child died with exit code 7 while it counted; it printed: last line"
    with pytest.raises(WorkerDied, match=expected):
        worker.ask({"do": "die"}, doing="counted")
    with pytest.raises(WorkerDied):
        worker.ask({"do": "count"})


@on_posix
def test_a_death_names_the_signal(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGTERM)
    with pytest.raises(WorkerDied, match="died of SIGTERM"):
        worker.ask({"do": "count"})


def test_a_malformed_reply_kills_the_child(worker: Worker) -> None:
    with pytest.raises(WorkerDied, match="the child sent a reply that is malformed or too large"):
        worker.ask({"do": "lie"})
    assert not worker.alive


def test_ctrl_c_while_waiting_kills_the_child(worker: Worker) -> None:
    def interrupted(number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.ask({"do": "count"}, progress=interrupted)
    assert not worker.alive


def test_closing_twice_is_fine(worker: Worker) -> None:
    worker.close()
    worker.close()
    assert not worker.alive
