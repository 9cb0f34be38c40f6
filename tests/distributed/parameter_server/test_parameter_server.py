"""A parameter server with workers in threads and processes, over sockets."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.checkpoints.folder import Checkpoints
from onward.distributed.parameter_server.parameter_server import ParameterServer
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.distributed.parameter_server.server_worker import ParameterServerWorker
from onward.errors import DistributedError, OptionError
from onward.optimizers import SGD, AdamW
from tests.distributed.parameter_server.server_cases import (
    GUARD,
    TOKEN,
    in_threads,
    loss_of,
    make_program,
    open_session,
    parameters_of,
    run_worker_process,
    session_of,
)
from tests.sessions.training.small import batches


def join_worker(server: ParameterServer, program: Any = None) -> ParameterServerWorker:
    return ParameterServerWorker(open_session(program), server.connection())


@pytest.mark.parametrize("staleness", [None, 2])
def test_asynchronous_training_converges(staleness: int | None) -> None:
    settings = ServerSettings(staleness=staleness, scale_by_staleness=True)
    with ParameterServer(open_session(), settings) as server:
        before = loss_of(session_of(server))
        address = server.listen(TOKEN)
        workers = [ParameterServerWorker(open_session(), address, token=TOKEN) for _ in range(2)]
        tasks = [lambda w=w, i=i: w.train(batches(60, seed=i)) for i, w in enumerate(workers)]
        with in_threads(*tasks):
            assert server.wait(GUARD)
        assert server.version == server.counts["applied"] == 120 and server.workers == []
        assert [worker.counts["applied"] for worker in workers] == [60, 60]
        assert loss_of(session_of(server)) < before / 2
        assert sum(server.staleness.values()) == 120
        assert staleness is None or max(server.staleness) <= staleness


@pytest.mark.parametrize(
    ("optimizer", "options", "in_turn"),
    [
        (AdamW(lr=0.01), {}, False),
        (SGD(lr=0.1, momentum=0.9), {"clip_norm": 0.1}, False),
        (AdamW(lr=0.01), {"dropout": 0.5}, True),
    ],
    ids=["adamw", "clip_norm", "dropout"],
)
def test_synchronous_workers_equal_one_process(
    optimizer: Any, options: dict[str, Any], in_turn: bool
) -> None:
    """Three workers, three gradients for an update: one process with three micro-batches."""
    program = make_program(optimizer, **options)
    data = [batches(10, seed=i) for i in range(3)]
    with ParameterServer(open_session(program), ServerSettings(staleness=0, average=3)) as server:
        workers = [join_worker(server, program) for _ in data]
        if in_turn:  # worker i draws the random numbers of micro-batch i
            for micro in zip(*data):
                for worker, feeds in zip(workers, micro):
                    worker.step(feeds)
        else:
            tasks = [lambda w=w, d=d: w.train(d) for w, d in zip(workers, data)]
            with in_threads(*tasks):
                assert server.wait(GUARD)
        found = parameters_of(session_of(server))
        assert server.version == 10 and server.counts["kept"] == 20
        for worker in workers:
            worker.close()
    alone = open_session(program)
    for micro in zip(*data):
        for feeds in micro:
            alone.run_forward(feeds)
            alone.run_backward()
        alone.update_weights()
    for name, tensor in parameters_of(alone).items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def test_batches_of_unequal_size_are_weighted_by_rows() -> None:
    """8 and 4 rows of two workers are one batch of 12 rows."""
    (whole,) = batches(1, size=12)
    parts = [{n: t[:8] for n, t in whole.items()}, {n: t[8:] for n, t in whole.items()}]
    with ParameterServer(open_session(), ServerSettings(staleness=0, average=2)) as server:
        workers = [join_worker(server) for _ in parts]
        for worker, feeds in zip(workers, parts):
            worker.step(feeds)
        found = parameters_of(session_of(server))
        for worker in workers:
            worker.close()
    alone = open_session()
    alone.step(whole)
    for name, tensor in parameters_of(alone).items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def test_running_statistics_come_from_the_workers() -> None:
    program = normalizing_program()
    data = batches(5)
    with ParameterServer(open_session(program)) as server:
        join_worker(server, program).train(data)
        session = session_of(server)
        found = {**session.parameters, **session.statistics}
        assert session.statistics
        alone = open_session(program)
        for feeds in data:
            alone.step(feeds)
        for name, tensor in {**alone.parameters, **alone.statistics}.items():
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def normalizing_program() -> Any:
    op = onward.OpBuilder()
    rng = np.random.default_rng(0)
    x = op.input("x", "float32", ("batch", 8))
    w = op.initializer("w", (rng.normal(size=(8, 4)) * 0.3).astype(np.float32))
    of = {name: op.initializer(name, np.full(8, value, np.float32))
          for name, value in [("scale", 1), ("shift", 0), ("mean", 0), ("var", 1)]}  # fmt: skip
    h = op.BatchNormalization(x, of["scale"], of["shift"], of["mean"], of["var"])
    model = op.model(logits=op.MatMul(h, w))
    return onward.compile_training(model, onward.losses.CrossEntropy(), SGD(lr=0.1))


def test_nan_never_reaches_the_weights() -> None:
    """A batch with NaN is refused and counted; so is a push that claims to be finite."""
    good, bad = batches(2)
    bad["x"][3, 2] = np.nan
    with ParameterServer(open_session()) as server:
        worker = join_worker(server)
        before = parameters_of(session_of(server))
        worker.step(bad)
        shard = worker._shards[0]
        shard.pull()
        gradients = {n: np.full_like(t, np.inf) for n, t in before.items()}
        assert shard.push(50, 1.0, True, shard.share(gradients, {})) == "nonfinite"
        for name, tensor in parameters_of(session_of(server)).items():
            np.testing.assert_array_equal(tensor, before[name])
        worker._number = 50
        worker.step(good)
        worker.close()
        assert server.version == 1 and server.counts["nonfinite"] == 2
        assert np.isfinite(list(map(np.sum, parameters_of(session_of(server)).values()))).all()


@pytest.mark.integration
def test_a_worker_is_killed_and_another_joins() -> None:
    """In synchronous mode, where the others would wait for the dead one for ever."""
    context = multiprocessing.get_context("spawn")
    settings = ServerSettings(staleness=0, average=2, timeout=2.0)
    with ParameterServer(open_session(), settings) as server:
        before = loss_of(session_of(server))
        address, started = server.listen(TOKEN), context.Event()
        arguments = (address, TOKEN, 7, 100_000, started)
        victim = context.Process(target=run_worker_process, args=arguments, daemon=True)
        victim.start()
        try:
            assert started.wait(GUARD)
            workers = [ParameterServerWorker(open_session(), address, token=TOKEN)]
            tasks = [lambda: workers[0].train(batches(60, seed=1))]
            with in_threads(*tasks):
                victim.kill()
                victim.join()
                joined = ParameterServerWorker(open_session(), address, token=TOKEN)
                joined.train(batches(60, seed=2))
            assert server.wait(GUARD)
        finally:
            victim.kill()
            victim.join()
        assert server.counts["expired"] >= 1 and server.counts["joined"] >= 3
        assert server.version >= 60 and loss_of(session_of(server)) < before
        taken = server.counts["kept"] + server.counts["applied"]
        assert 2 * server.version <= taken <= 2 * server.version + 1


def test_a_dropped_worker_joins_again_and_its_batch_is_used_once() -> None:
    now = [0.0]
    settings = ServerSettings(timeout=1000.0)
    with ParameterServer(open_session(), settings, clock=lambda: now[0]) as server:
        worker = join_worker(server)
        first, second = batches(2)
        worker.step(first)
        backward = worker.session.run_backward

        def take_long() -> None:
            now[0] += 2000.0
            worker.session.run_backward = backward  # type: ignore[method-assign]
            backward()

        worker.session.run_backward = take_long  # type: ignore[method-assign]
        worker.step(second)
        worker.close()
        assert dict(worker.counts) == {"applied": 2, "unknown": 1}
        assert server.version == 2 and server.counts["expired"] == 1


def test_a_server_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """At the same address: its worker waits for it, and no batch is lost or used twice."""
    data = batches(40)
    program = make_program(AdamW(lr=0.01))

    def open_server(port: int = 0) -> tuple[ParameterServer, str]:
        checkpoints = Checkpoints(tmp_path, every=7)
        server = ParameterServer(open_session(program), checkpoints=checkpoints)
        return server, server.listen(TOKEN, port=port)

    server, address = open_server()
    worker = ParameterServerWorker(open_session(program), address, token=TOKEN)
    for feeds in data[:20]:
        worker.step(feeds)
    assert Checkpoints(tmp_path).steps() == [7, 14]
    server.close()
    assert Checkpoints(tmp_path).steps() == [7, 14, 20]
    again, _ = open_server(int(address.split(":")[1]))
    with again:
        assert again.version == 20 and again.counts["updates"] == 20
        worker.train(data[20:])
        found = parameters_of(session_of(again))
        assert again.version == 40
    alone = open_session(program)
    for feeds in data:
        alone.step(feeds)
    for name, tensor in parameters_of(alone).items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def test_the_rate_falls_with_staleness_whatever_the_optimizer() -> None:
    """AdamW divides by the gradient's size: scaled gradients would change nothing."""
    first, second = batches(2)
    moved = []
    for scaled in (False, True):
        program = make_program(AdamW(lr=0.01, weight_decay=0.0))
        settings = ServerSettings(scale_by_staleness=scaled)
        with ParameterServer(open_session(program), settings) as server:
            workers = [join_worker(server, program) for _ in range(2)]
            for worker, feeds in zip(workers, (first, second)):
                worker.session.draw_as(*worker._pull())  # type: ignore[misc]
                worker.session.run_forward(feeds)
                worker.session.run_backward()
            workers[0]._push(12.0)
            before = parameters_of(session_of(server))["w1"]
            workers[1]._push(12.0)
            moved.append(np.abs(parameters_of(session_of(server))["w1"] - before).sum())
            assert server.staleness == {0: 1, 1: 1}
            assert session_of(server).learning_rate == pytest.approx(0.01)
            for worker in workers:
                worker.close()
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-3)


def test_an_empty_batch_is_not_pushed() -> None:
    with ParameterServer(open_session()) as server:
        worker = join_worker(server)
        worker.train([{n: t[:0] for n, t in batches(1)[0].items()}, *batches(1)])
        assert dict(worker.counts) == {"empty": 1, "applied": 1} and server.version == 1


def test_a_worker_of_another_model_is_refused() -> None:
    with (
        ParameterServer(open_session(normalizing_program())) as server,
        pytest.raises(OptionError, match="trains another model than this worker: 'w' differs"),
    ):
        join_worker(server)
    with pytest.raises(OptionError, match="needs the address of a parameter server"):
        ParameterServerWorker(open_session(), server)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be of the class TrainingSession"):
        ParameterServer("model.onnx")  # type: ignore[arg-type]


def test_ctrl_c_leaves_the_server() -> None:
    def interrupted() -> Any:
        yield from batches(3)
        raise KeyboardInterrupt

    with ParameterServer(open_session()) as server:
        worker = ParameterServerWorker(open_session(), server.listen(TOKEN), token=TOKEN)
        with pytest.raises(KeyboardInterrupt):
            worker.train(interrupted())
        assert server.workers == [] and server.counts["left"] == 1 and server.version == 3
        assert not worker._beating.is_alive()


def test_the_server_says_when_to_stop() -> None:
    with ParameterServer(open_session(), ServerSettings(updates=5)) as server:
        counts = join_worker(server).train(batches(50))
        assert counts == {"applied": 5} and server.version == 5 and server.wait(GUARD)


def test_requests_are_checked() -> None:
    with ParameterServer(open_session()) as server:
        for header in (
            {},
            {"do": "join"},
            {"do": "fly", "worker": "a"},
            {"do": "pull", "worker": 1},
        ):
            with pytest.raises(DistributedError, match="not a request to a parameter server"):
                server.ask(header, {})
        with pytest.raises(DistributedError, match="not a push to a parameter server"):
            server.ask({"do": "push", "worker": "a", "number": -1}, {})
        assert not server.wait(0.0)
