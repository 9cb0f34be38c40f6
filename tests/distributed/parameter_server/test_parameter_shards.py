"""Parameters divided over several servers."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

import onward
from onward.distributed.parameter_server.parameter_server import ParameterServer
from onward.distributed.parameter_server.parameter_shards import shard_program, split_names
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.distributed.parameter_server.server_worker import ParameterServerWorker
from onward.errors import OptionError
from onward.optimizers import AdamW, Group, Muon
from tests.distributed.parameter_server.server_cases import (
    GUARD,
    in_threads,
    make_program,
    open_session,
    parameters_of,
    session_of,
)
from tests.sessions.training.small import batches

ADAMW = AdamW(lr=0.01)
MUON = Group(parameters="w*", optimizer=Muon(lr=0.01))  # its graph takes all matrices together


def test_names_are_divided_in_order_by_their_elements() -> None:
    program = make_program()  # w1 128, w2 64, b1 16, b2 4 elements
    assert split_names(program, 1) == [["b1", "b2", "w1", "w2"]]
    assert split_names(program, 2) == [["b1", "b2", "w1"], ["w2"]]
    assert split_names(program, 4) == [["b1"], ["b2"], ["w1"], ["w2"]]
    with pytest.raises(OptionError, match="4 parameters cannot be divided over 5 servers"):
        split_names(program, 5)


def test_parameters_of_one_update_graph_stay_together() -> None:
    parts = split_names(make_program(ADAMW, groups=[MUON]), 2)
    assert sorted(name for part in parts for name in part) == ["b1", "b2", "w1", "w2"]
    assert any({"w1", "w2"} <= set(part) for part in parts)


@pytest.mark.parametrize("groups", [[], [MUON]], ids=["adamw", "muon"])
def test_two_servers_equal_one_process(groups: list[Group]) -> None:
    program = make_program(ADAMW, groups=groups)
    data = batches(8)
    found = {}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(open_session(shard_program(program, 2, i))))
            for i in range(2)
        ]
        connections = [server.connection() for server in servers]
        worker = ParameterServerWorker(open_session(program), connections)
        assert worker.train(data) == {"applied": 8}
        for server in servers:
            held = parameters_of(session_of(server))
            assert 0 < len(held) < 4
            found |= held
    alone = open_session(program)
    for feeds in data:
        alone.step(feeds)
    for name, tensor in parameters_of(alone).items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def test_workers_of_two_synchronous_servers_do_not_wait_for_each_other_for_ever() -> None:
    program = make_program()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                ParameterServer(
                    open_session(shard_program(program, 2, i)), ServerSettings(staleness=0)
                )
            )
            for i in range(2)
        ]
        workers = [
            ParameterServerWorker(open_session(program), [s.connection() for s in servers])
            for _ in range(3)
        ]
        with in_threads(*(lambda w=w: w.train(batches(10)) for w in workers)):
            assert all(server.wait(GUARD) for server in servers)
        assert [server.version for server in servers] == [30, 30]
        assert [dict(server.staleness) for server in servers] == [{0: 30}, {0: 30}]


def test_gradients_that_are_not_finite_are_refused_by_all_servers() -> None:
    program = make_program()
    (bad,) = batches(1)
    bad["x"][:, 0] = np.inf
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(open_session(shard_program(program, 2, i))))
            for i in range(2)
        ]
        connections = [server.connection() for server in servers]
        worker = ParameterServerWorker(open_session(program), connections)
        assert worker.train([bad]) == {"nonfinite": 1}
        assert [server.counts["nonfinite"] for server in servers] == [1, 1]


def test_a_server_that_was_forgotten() -> None:
    program = make_program()
    with (
        ParameterServer(open_session(shard_program(program, 2, 0))) as server,
        pytest.raises(OptionError, match=r"'w2' differs\n.*addresses of all servers"),
    ):
        ParameterServerWorker(open_session(program), [server.connection()])


def test_programs_that_cannot_be_sharded() -> None:
    clipped = make_program(clip_norm=1.0)
    assert shard_program(clipped, 1, 0).names
    with pytest.raises(OptionError, match="clip_norm is of all gradients"):
        shard_program(clipped, 2, 0)
    with pytest.raises(OptionError, match="there is no server 2 of 2: they are 0 to 1"):
        shard_program(make_program(), 2, 2)


def test_the_first_server_holds_the_statistics() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 8))
    first = {"scale": 1, "shift": 0, "mean": 0, "var": 1}
    tensors = [op.initializer(name, np.full(8, n, np.float32)) for name, n in first.items()]
    h = op.BatchNormalization(x, *tensors)
    model = op.model(logits=op.MatMul(h, op.initializer("w", np.eye(8, 4, dtype=np.float32))))
    program = onward.compile_training(model, onward.losses.CrossEntropy(), AdamW(lr=0.01))
    data = batches(4)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ParameterServer(open_session(shard_program(program, 2, i))))
            for i in range(2)
        ]
        connections = [server.connection() for server in servers]
        ParameterServerWorker(open_session(program), connections).train(data)
        assert [len(session_of(server).statistics) for server in servers] == [2, 0]
        found = dict(session_of(servers[0]).statistics)
        alone = open_session(program)
        for feeds in data:
            alone.step(feeds)
        for name, tensor in alone.statistics.items():
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)
