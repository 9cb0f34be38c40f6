"""R16 to R21, the short tier: a few requests each, and servers with a fault, which must be found.

The servers that must keep the promises are `onward serve` and a stand-in; the whole rows are
`python -m conformance.reliability R16 ...`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from conformance.reliability import (
    hostile_connections,
    hot_reloads,
    mixed_traffic,
    overload,
    steady_serving,
    terminations,
)
from conformance.reliability.malformed_requests import MALFORMED
from conformance.reliability.serving_client import Answer, Tally, binary_request, read_outputs
from conformance.reliability.serving_models import make_input, weights, wrong_scores
from conformance.reliability.serving_process import COMMAND, Footprint
from onward.cli.main import VERBS

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_server.py")), "{path}",
            "--http-port", "{http_port}")  # fmt: skip
SERVER = COMMAND if "serve" in VERBS else STAND_IN
ATTACKS = [
    "headers that never end",
    "a header of 1 MB",
    "a body of 1 TB",
    "a chunk of a false size",
]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are processes, which import this repository's package."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def with_fault(name: str) -> tuple[str, ...]:
    return (*STAND_IN, "--fault", name)


@pytest.mark.integration
def test_mixed_traffic_is_answered_right() -> None:
    tally = mixed_traffic.send_all(600, 60, seed=0, command=SERVER)
    assert not tally.faults
    assert tally.outcomes["200"] > 500 and tally.outcomes["malformed, 4xx"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "words"), [("swapped", "got the wrong scores"), ("server-error", " got 500: ")]
)
def test_wrong_answers_and_server_errors_are_found(fault: str, words: str) -> None:
    tally = mixed_traffic.send_all(150, 10, seed=0, command=with_fault(fault))
    assert [each for each in tally.faults if words in each]


@pytest.mark.integration
def test_an_overload_is_shed() -> None:
    found = overload.overload(1.0, 5.0, SERVER, rounds=1)
    late = ("a refusal took", "an accepted request took", "answers/s of", "after the recovery")
    assert not [each for each in found.tally.faults if not any(word in each for word in late)]
    assert found.shed and found.answered


def test_an_overload_that_is_not_shed_is_found() -> None:
    found = overload.Overload(capacity=100.0, rate=30.0, unloaded=0.01)
    found.answered, found.recovered = [9.0] * 10, [1.0]
    found.judge()
    assert found.tally.faults == [
        "nothing was refused",
        "an accepted request took 9.00 s (p99)",
        "30 answers/s of 100",
        "1.000 s a request after the recovery",
    ]


@pytest.mark.integration
def test_hostile_connections_do_not_harm_other_requests() -> None:
    found = hostile_connections.attack_all(5, 0.3, ATTACKS, SERVER)
    assert not [fault for fault in found.tally.faults if "p99 rose" not in fault]
    assert found.requests and found.ends["closed"] < found.ends.total()


def test_slow_normal_traffic_is_found() -> None:
    found = hostile_connections.Attacked(alone=[0.001] * 10, during={"silent": [0.9], "loud": []})
    found.judge()
    assert found.tally.faults == [
        "silent: p99 rose to 0.900 s, bound 0.255",
        "loud: no normal request was answered",
    ]


@pytest.mark.integration
def test_termination_loses_no_accepted_request() -> None:
    tally, waiting = terminations.terminate_all(1, 8, seed=0, command=SERVER)
    assert not tally.faults and waiting and tally.outcomes["200"]


@pytest.mark.integration
def test_lost_requests_at_a_termination_are_found() -> None:
    tally, _ = terminations.terminate_all(1, 8, seed=0, command=with_fault("lost-on-term"))
    assert [fault for fault in tally.faults if "was not answered" in fault]


@pytest.mark.integration
def test_hot_reloads_fail_no_request() -> None:
    found = hot_reloads.reload_all(4, 4, SERVER)
    assert not found.tally.faults and found.replaced == 4 and found.newest == 4


@pytest.mark.integration
def test_stale_answers_after_a_reload_are_found() -> None:
    found = hot_reloads.reload_all(4, 4, with_fault("stale"))
    assert [fault for fault in found.tally.faults if "answered request" in fault]


@pytest.mark.integration
def test_a_server_stays_the_same() -> None:
    found = steady_serving.serve_many(1000, 8, seed=0, command=SERVER, growth=64 << 20)
    assert not found.tally.faults and found.early.memory and found.early.threads


def test_growth_is_found() -> None:
    found = steady_serving.Steady(early=Footprint(10 << 20, 5, 3), late=Footprint(20 << 20, 6, 4))
    found.judge()
    assert found.tally.faults == [
        "memory grew from 10 to 20 MiB", "files: 5, then 6", "threads: 3, then 4",
    ]  # fmt: skip


# -- the client -----------------------------------------------------------------------------------


def test_a_wrong_answer_is_found() -> None:
    x, w = make_input(7), weights(3)
    scores = np.maximum(x @ w.w1 + w.b1, 0) @ w.w2
    right = {"scores": scores, "made": np.full((len(x), 1), 3, np.float32)}
    assert wrong_scores(7, right) == ""
    assert wrong_scores(8, right) and wrong_scores(10, right)  # another request's
    assert wrong_scores(7, right | {"made": right["made"] - 1})  # another generation's
    assert wrong_scores(7, right | {"scores": scores[:, ::-1]})
    assert wrong_scores(7, {"scores": scores})


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "request 1 was not answered"),
        (Answer(500, {}, b"oops", 0.0), "request 1 got 500"),
        (Answer(200, {}, b"{", 0.0), "request 1 got outputs that cannot be read"),
        (Answer(503, {}, b"", 0.0), ""),
    ],
)
def test_answers_are_counted(answer: Answer | None, fault: str) -> None:
    tally = Tally()
    assert not tally.count(answer, 1, wrong_scores)
    assert len(tally.faults) == bool(fault) and fault in "".join(tally.faults)


def test_binary_and_json_outputs_are_read() -> None:
    data = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}'
    assert read_outputs(Answer(200, {}, data, 0))["y"].tolist() == [1, 2]
    head = data.replace(b'"data": [1, 2]', b'"parameters": {"binary_data_size": 8}')
    raw = np.array([3, 4], np.float32).tobytes()
    headers = {"inference-header-content-length": str(len(head))}
    assert read_outputs(Answer(200, headers, head + raw, 0))["y"].tolist() == [3, 4]
    with pytest.raises(ValueError, match="4 bytes are left over"):
        read_outputs(Answer(200, headers, head + raw + b"1234", 0))


def test_malformed_requests_differ_from_good_ones() -> None:
    made = {name: make(5) for name, make in MALFORMED.items()}
    assert len(set(made.values())) == len(made) and binary_request(5) not in made.values()
