"""Updates: the learning rate is the given one, in the type of the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.errors import OptionError
from onward.losses import CrossEntropy
from onward.optimizers import LAMB, SGD, AdamW, Cosine, Group, Muon, WarmUp
from onward.optimizers.catalogue import OPTIMIZERS
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp, next_rates, torch_mlp, weights

STEPS = 50
WIDE = {name: tensor.astype(np.float64) for name, tensor in weights().items()}
SGDS = SGD(lr=0.1, momentum=0.9, weight_decay=0.01), torch.optim.SGD
ADAMS = AdamW(lr=0.001), torch.optim.AdamW


@pytest.mark.sampled("ours")
@pytest.mark.sampled("apart")
@pytest.mark.sampled("parts")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [SGDS, ADAMS], ids=["SGD", "AdamW"])
def test_a_model_of_doubles_is_trained_in_doubles(
    ours: Any, theirs: Any, apart: bool, parts: int
) -> None:
    one = TrainingSession(mlp(WIDE, "float64"), CrossEntropy(), ours, {"accumulate": parts})
    one._engine._is_fused &= not apart
    parameters, forward = torch_mlp(WIDE)
    names = ("lr", "momentum", "betas", "eps", "weight_decay")
    settings = {name: getattr(ours, name) for name in names if hasattr(ours, name)}
    peer = theirs(parameters.values(), **settings)
    for feeds in batches(STEPS):
        x, labels = feeds["x"].astype(np.float64), feeds["labels"]
        for rows in np.split(np.arange(12), parts):
            one.step({"x": x[rows], "labels": labels[rows]})
        peer.zero_grad()
        torch.nn.functional.cross_entropy(forward(x), torch.tensor(labels)).backward()
        peer.step()
    assert one.steps == STEPS
    for name, parameter in parameters.items():
        found, expected = one.parameters[name], parameter.detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.05}, {"accumulate": 2}])
def test_updates_of_doubles_run_with_every_option(options: dict[str, Any]) -> None:
    groups = [Group(parameters="b*", optimizer=LAMB(lr=0.01))]
    settings = {"groups": groups, "schedule": Cosine(steps=20), **options}
    wide = TrainingSession(mlp(WIDE, "float64"), CrossEntropy(), AdamW(lr=0.01), settings)
    plain = TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.01), settings)
    for feeds in batches(6):
        plain.step(feeds)
        wide.step({"x": feeds["x"].astype(np.float64), "labels": feeds["labels"]})
    assert list(wide._engine._feeds) == ["train" if "accumulate" in options else "step"]
    for name, parameter in wide.parameters.items():
        np.testing.assert_allclose(parameter, plain.parameters[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rate", [-1, np.nan, np.inf, "a", None, True, [0.1]])
def test_invalid_learning_rates_are_refused(rate: Any) -> None:
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1))
    law = r"a learning rate must be a number, 0 or more, not .*\ngive one, such as 0\.001"
    with pytest.raises(OptionError, match=law):
        one.set_learning_rate(rate)
    assert one.learning_rate == 0.1


def test_a_learning_rate_of_numpys_can_be_saved(tmp_path: Any) -> None:
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1))
    one.set_learning_rate(np.float32(0.5))
    one.save(tmp_path / "c")
    assert one.learning_rate == 0.5


@pytest.mark.sampled("name")
@pytest.mark.sampled("parts")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("parts", [1, 2])
def test_set_learning_rate_is_training_with_that_rate(name: str, parts: int) -> None:
    kind = OPTIMIZERS[name]
    other = AdamW if kind is Muon else kind  # biases are no matrices
    found, expected = (
        TrainingSession(
            mlp(),
            CrossEntropy(),
            kind(lr=0.1 * factor),
            {
                "accumulate": parts,
                "groups": [
                    Group(parameters="w1", lr=0.001 * factor),
                    Group(parameters="b2", optimizer=other(lr=0.0)),
                    Group(parameters="b*", optimizer=other(lr=0.2 * factor)),
                ],
            },
        )
        for factor in (1, 0.5)
    )
    found.set_learning_rate(0.05)
    assert found.learning_rate == expected.learning_rate == 0.05
    for feeds in batches(4):
        found.step(feeds)
        expected.step(feeds)
    for parameter, tensor in expected.parameters.items():
        np.testing.assert_allclose(found.parameters[parameter], tensor, atol=1e-6)
    np.testing.assert_array_equal(found.parameters["b2"], weights()["b2"])


@pytest.mark.parametrize("schedule", [None, WarmUp(steps=2, schedule=Cosine(steps=6))])
def test_the_learning_rate_is_the_optimizers_own_in_any_group(schedule: Any) -> None:
    groups = [Group(parameters="w*", lr=0.2), Group(parameters="b*", lr=0.0)]  # all there are
    options = {"groups": groups, "schedule": schedule}
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1), options)

    def rate(own: float) -> float:
        return own if schedule is None else schedule.rate(one.steps, own)

    for own in (0.1, 0.05, 0.0, 0.3):
        one.set_learning_rate(own)
        assert one.learning_rate == rate(own)
        assert next_rates(one) == pytest.approx([rate(2 * own), rate(0.0)])
        one.step(batches(1)[0])


def test_groups_of_an_optimizer_with_rate_0_have_constant_rates() -> None:
    groups = [Group(parameters="w1", lr=0.2)]
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.0), {"groups": groups})
    assert one.learning_rate == 0.0
    one.set_learning_rate(0.1)
    assert next_rates(one) == [0.2, 0.1]


def test_a_saved_program_knows_the_optimizers_own_rate(tmp_path: Any) -> None:
    options = {"groups": [Group(parameters="*", lr=0.2)]}
    one = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1), options)
    again = TrainingSession(one.program.save(tmp_path / "program"))
    assert again.learning_rate == 0.1
    again.set_learning_rate(0.05)
    assert next_rates(again) == [0.1]


def test_the_rate_of_the_next_update_is_known_without_waiting() -> None:
    session = TrainingSession(mlp(), CrossEntropy(), SGD(lr=0.1), {"schedule": Cosine(steps=10)})
    for feeds in batches(4):
        assert session.expected_learning_rate == session.learning_rate
        session._progress.record(True)  # an update whose flag has not been read
        expected = session.expected_learning_rate
        assert session._progress.pending and expected == session.learning_rate
        session.step(feeds)
