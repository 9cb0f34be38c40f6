"""Sessions that train with compressed gradients, or average their weights, over two processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.distributed import DiLoCo, HalfPrecision, Int8, LocalSGD, PowerSGD, TopK
from onward.distributed.communicator import Communicator
from onward.distributed.compression.uncompressed import SumReducer
from onward.graph.builder import OpBuilder
from onward.losses import MSE
from onward.optimizers import SGD
from onward.programs.vector_offsets import place_parameters
from onward.sessions.training.session import TrainingSession
from tests.distributed.group_of_processes import run_processes

Feeds = dict[str, np.ndarray[Any, Any]]

STEPS = 80
COMPRESSIONS = [
    HalfPrecision(),
    HalfPrecision(dtype="float16"),
    Int8(),
    TopK(share=0.05),
    PowerSGD(rank=1),
    PowerSGD(rank=2, start_step=5, factors="bfloat16"),
]
WITHOUT_FEEDBACK = [
    TopK(share=0.05, error_feedback=False),
    PowerSGD(rank=1, error_feedback=False),
]


def open_session() -> TrainingSession:
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 16))
    w1 = op.initializer("w1", rng.normal(0, 0.25, (16, 32)).astype(np.float32))
    b1 = op.initializer("b1", np.zeros(32, np.float32))
    w2 = op.initializer("w2", rng.normal(0, 0.2, (32, 4)).astype(np.float32))
    y = op.MatMul(op.Tanh(op.Add(op.MatMul(x, w1), b1)), w2)
    return TrainingSession(op.model(y=y), MSE(), SGD(lr=0.2))


def make_data() -> Feeds:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(128, 16)).astype(np.float32)
    return {"x": x, "target": np.tanh(x @ rng.normal(0, 0.25, (16, 4))).astype(np.float32)}


def rows(data: Feeds, step: int, rank: int, size: int) -> Feeds:
    """A process's part of the batch of a step."""
    start = (32 * step + 32 * rank // size) % 128
    return {name: array[start : start + 32 // size] for name, array in data.items()}


def open_reducers(session: TrainingSession, communicator: Any, compression: Any) -> list[Any]:
    layout = session.program.layout
    if compression is None:
        return [SumReducer(communicator) for _ in layout.updates]
    places = [place_parameters(layout, update) for update in layout.updates]
    return [compression.open(communicator, each) for each in places]


def train(communicator: Any, compression: Any, steps: int) -> tuple[float, dict[str, Any]]:
    """Train with gradients averaged by reducers: the loss of all data, and the weights."""
    session, data = open_session(), make_data()
    reducers = open_reducers(session, communicator, compression)

    def average(buffers: list[Any]) -> None:
        vectors = [torch.from_numpy(buffer).div_(communicator.size) for buffer in buffers]
        works = [reducer.reduce(each) for reducer, each in zip(reducers, vectors)]
        for work in works:
            work.wait()

    session.add_gradient_hook(average)
    for step in range(steps):
        session.step(rows(data, step, communicator.rank, communicator.size))
    return evaluate(session, data)


def evaluate(session: TrainingSession, data: Feeds) -> tuple[float, dict[str, Any]]:
    weights = {name: np.array(tensor) for name, tensor in session.parameters.items()}
    return float(session.evaluate(data)["loss"]), weights


def train_locally(communicator: Any, local_steps: Any, steps: int) -> tuple[float, dict[str, Any]]:
    """Train with weights averaged every few steps."""
    session, data = open_session(), make_data()
    names = list(session.parameters)
    vectors = [torch.from_numpy(np.array(session.parameters[name])).view(-1) for name in names]
    averager = local_steps.open(communicator, vectors)
    for step in range(steps):
        session.step(rows(data, step, communicator.rank, communicator.size))
        for name, vector in zip(names, vectors):
            vector.copy_(torch.from_numpy(np.array(session.parameters[name])).view(-1))
        if averager.after_update(vectors):
            shapes = {name: session.parameters[name].shape for name in names}
            averaged = {n: v.numpy().reshape(shapes[n]) for n, v in zip(names, vectors)}
            session.set_parameters(averaged)
    return evaluate(session, data)


def train_all(rank: int) -> dict[str, tuple[float, dict[str, Any]]]:
    group = Communicator()
    settings = [None, *COMPRESSIONS, *WITHOUT_FEEDBACK]
    found = {repr(each): train(group, each, STEPS) for each in settings}
    local = [LocalSGD(every=8), DiLoCo(every=8)]
    return found | {repr(each): train_locally(group, each, STEPS) for each in local}


@pytest.fixture(scope="module")
def found() -> list[dict[str, tuple[float, dict[str, Any]]]]:
    """What each process found; starting them takes most of the time."""
    return run_processes(train_all, 2)


@pytest.mark.integration
def test_both_processes_have_the_same_weights(found: list[dict[str, Any]]) -> None:
    for name, (_, weights) in found[0].items():
        for tensor, other in zip(weights.values(), found[1][name][1].values()):
            assert tensor.tobytes() == other.tobytes(), name


@pytest.mark.integration
@pytest.mark.parametrize("kind", [*COMPRESSIONS, LocalSGD(every=8), DiLoCo(every=8)], ids=repr)
def test_the_loss_is_nearly_that_of_uncompressed_gradients(
    found: list[dict[str, Any]], kind: Any
) -> None:
    plain = found[0]["None"][0]
    start = evaluate(open_session(), make_data())[0]
    assert plain < 0.2 * start
    assert found[0][repr(kind)][0] < 1.1 * plain


def test_error_feedback_matters(found: list[dict[str, Any]]) -> None:
    losses = {name: loss for name, (loss, _) in found[0].items()}
    for kind in WITHOUT_FEEDBACK:
        assert losses[repr(kind)] > 1.5 * losses["None"], kind
