"""After 50 steps on the same data, the parameters are torch's: optimizers, schedules, losses."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as f

from onward import losses, optimizers
from onward.optimizers import schedules
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp, torch_mlp, weights

STEPS = 50
TOLERANCE = 1e-5

T = torch.optim
OPTIMIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "SGD": (optimizers.SGD(lr=0.1), lambda p: T.SGD(p, lr=0.1)),
    "SGD momentum": (
        optimizers.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
        lambda p: T.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    ),
    "SGD Nesterov": (
        optimizers.SGD(lr=0.05, momentum=0.9, nesterov=True),
        lambda p: T.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ),
    "Adam": (optimizers.Adam(lr=0.01), lambda p: T.Adam(p, lr=0.01)),
    "AdamW": (optimizers.AdamW(lr=0.01), lambda p: T.AdamW(p, lr=0.01)),
    "RMSprop": (optimizers.RMSprop(lr=0.002), lambda p: T.RMSprop(p, lr=0.002)),
    "Adagrad": (optimizers.Adagrad(lr=0.02), lambda p: T.Adagrad(p, lr=0.02)),
    "Adafactor": (optimizers.Adafactor(lr=0.01), lambda p: T.Adafactor(p, lr=0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_match_torch(name: str) -> None:
    ours, theirs = OPTIMIZERS[name]
    compare(losses.CrossEntropy(), ours, theirs, cross_entropy)


def test_muon_matches_torch() -> None:
    """The matrices by Muon, the rest by AdamW, as torch's Muon demands."""
    group = optimizers.Group(parameters="b*", optimizer=optimizers.AdamW(lr=0.01))

    def theirs(parameters: list[Any]) -> Any:
        w1, b1, w2, b2 = parameters
        return Both(T.Muon([w1, w2], lr=0.01), T.AdamW([b1, b2], lr=0.01))

    ours = optimizers.Muon(lr=0.01)
    # torch's Newton-Schulz runs in bfloat16, ours in the parameter's own type
    compare(losses.CrossEntropy(), ours, theirs, cross_entropy, tolerance=5e-2, groups=[group])


S = T.lr_scheduler
SCHEDULES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "constant": (schedules.Constant(), lambda o: S.ConstantLR(o, 1.0, 1)),
    "linear": (schedules.Linear(steps=40, end_factor=0.1), lambda o: S.LinearLR(o, 1.0, 0.1, 40)),
    "polynomial": (
        schedules.Polynomial(steps=40, power=2.0),
        lambda o: S.PolynomialLR(o, 40, power=2.0),
    ),
    "cosine": (schedules.Cosine(steps=60), lambda o: S.CosineAnnealingLR(o, 60)),
    "restarts": (
        schedules.Cosine(steps=10, restarts=True, multiplier=2),
        lambda o: S.CosineAnnealingWarmRestarts(o, 10, T_mult=2),
    ),
    "warm-up": (
        schedules.WarmUp(steps=10, schedule=schedules.Cosine(steps=40), start_factor=0.1),
        lambda o: S.SequentialLR(
            o, [S.LinearLR(o, 0.1, 1.0, 10), S.CosineAnnealingLR(o, 40)], [10]
        ),
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_match_torch(name: str) -> None:
    ours, theirs = SCHEDULES[name]
    compare(
        losses.CrossEntropy(),
        optimizers.AdamW(lr=0.01),
        lambda p: T.AdamW(p, lr=0.01),
        cross_entropy,
        theirs,
        schedule=ours,
    )


def cross_entropy(logits: Any, feeds: dict[str, Any]) -> Any:
    return f.cross_entropy(logits, torch.tensor(feeds["labels"]))


def soft(logits: Any, feeds: dict[str, Any]) -> Any:
    return f.cross_entropy(logits, torch.tensor(feeds["labels"]), label_smoothing=0.1)


def on_target(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return lambda y, feeds: function(y, torch.tensor(feeds["target"]), **settings)


WEIGHT = (0.5, 1.0, 2.0, 4.0)
LOSSES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "smoothed": (losses.CrossEntropy(label_smoothing=0.1), soft),
    "weighted": (
        losses.CrossEntropy(weight=WEIGHT),
        lambda y, d: f.cross_entropy(y, torch.tensor(d["labels"]), torch.tensor(WEIGHT)),
    ),
    "MSE": (losses.MSE(), on_target(f.mse_loss)),
    "L1": (losses.L1(), on_target(f.l1_loss)),
    "Huber": (losses.Huber(delta=0.5), on_target(f.huber_loss, delta=0.5)),
    "BCE": (
        losses.BCEWithLogits(pos_weight=WEIGHT),
        on_target(f.binary_cross_entropy_with_logits, pos_weight=torch.tensor(WEIGHT)),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_match_torch(name: str) -> None:
    ours, theirs = LOSSES[name]
    compare(ours, optimizers.SGD(lr=0.05, momentum=0.9), momentum, theirs)


def momentum(parameters: list[Any]) -> Any:
    return T.SGD(parameters, lr=0.05, momentum=0.9)


class Both:
    """Two optimizers as one."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()


def compare(
    loss: Any,
    ours: Any,
    theirs: Callable[[Any], Any],
    their_loss: Callable[..., Any],
    scheduler: Callable[[Any], Any] | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> None:
    session = TrainingSession(mlp(), loss, ours, TrainingOptions(**options))
    parameters, forward = torch_mlp()
    optimizer = theirs(list(parameters.values()))
    schedule = scheduler(optimizer) if scheduler is not None else None
    wanted = set(session.input_names)
    for feeds in batches(STEPS):
        feeds["target"] = np.eye(4, dtype=np.float32)[feeds["labels"]]
        session.step({name: array for name, array in feeds.items() if name in wanted})
        optimizer.zero_grad()
        their_loss(forward(feeds["x"]), feeds).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    for name, parameter in parameters.items():
        found, expected = session.parameters[name], parameter.detach().numpy()
        assert not np.array_equal(expected, weights()[name])
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.integration
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_with_computed_shapes_matches_torch(dynamic: bool) -> None:
    """As torch's older exporter writes attention: ranks show when shapes are folded."""
    torch.manual_seed(0)
    attention, file = torch.nn.MultiheadAttention(8, 2, batch_first=True), io.BytesIO()
    x, target = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(
            attention,
            (x, x, x),
            file,
            dynamo=False,
            input_names=["q", "k", "v"],
            output_names=["y", "weights"],
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            dynamic_axes={name: {0: "batch", 1: "time"} for name in "qkv"} if dynamic else None,
        )
    loss = losses.MSE(output="y")
    session = TrainingSession(file.getvalue(), loss, optimizers.SGD(lr=0.1))
    optimizer = T.SGD(attention.parameters(), lr=0.1)
    for _ in range(5):
        found = session.step({**dict.fromkeys("qkv", x.numpy()), "target": target.numpy()})
        optimizer.zero_grad()
        wanted = f.mse_loss(attention(x, x, x)[0], target)
        wanted.backward()
        optimizer.step()
        assert found["loss"] == pytest.approx(wanted.item(), rel=TOLERANCE)
    for name, parameter in attention.named_parameters():
        np.testing.assert_allclose(
            session.parameters[name], parameter.detach().numpy(), atol=TOLERANCE, err_msg=name
        )
