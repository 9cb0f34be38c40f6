"""Checkpoints of a session: a resumed run is the same run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints import tensor_files
from onward.checkpoints.folder import Checkpoints
from onward.errors import CheckpointError, CheckpointMismatch
from onward.losses import CrossEntropy
from onward.optimizers import LAMB, SGD, Adafactor, AdamW
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.schedules import Cosine, WarmUp
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession
from tests.sessions.training.small import batches, mlp, next_rates, weights

OPTIMIZERS = [SGD(lr=0.1, momentum=0.9), AdamW(lr=0.02), LAMB(lr=0.02), Adafactor(lr=0.02)]


def session(optimizer: Any, **options: Any) -> TrainingSession:
    return TrainingSession(
        mlp(dropout=0.3), CrossEntropy(), optimizer, TrainingOptions(seed=7, **options)
    )


@pytest.mark.sampled("optimizer")
@pytest.mark.sampled("stop")
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("stop", [1, 4, 5])  # 4 and 5: in the midst of micro-batches
def test_a_resumed_run_is_bit_identical(optimizer: Any, stop: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "accumulate": 3,
        "clip_norm": 0.5,
        "schedule": WarmUp(steps=2, schedule=Cosine(steps=4)),
        "loss_scale": DynamicLossScale(initial=8.0, interval=2),
        "average": EMA(decay=0.9),
    }
    whole, first, second = (session(optimizer, **settings) for _ in range(3))
    data = batches(9)
    expected = [whole.step(feeds)["loss"] for feeds in data]
    found = [first.step(feeds)["loss"] for feeds in data[:stop]]
    first.properties["epoch"] = 3
    first.save(tmp_path / "checkpoint")
    second.step(data[0])  # whatever it has done before is forgotten
    second.load(tmp_path / "checkpoint")
    assert second.properties == {"epoch": 3}
    found += [second.step(feeds)["loss"] for feeds in data[stop:]]
    assert found == expected
    tensors, properties = whole.checkpoint()
    again, other = second.checkpoint()
    assert properties["training"] == other["training"]
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, again[name], err_msg=name)


def test_a_run_that_is_resumed_twice_keeps_its_seed(tmp_path: Path) -> None:
    whole, *later = (session(SGD(lr=0.1)), *(_seeded(seed) for seed in (1, 2)))
    data = batches(3)
    expected = [whole.step(feeds)["loss"] for feeds in data]
    first = session(SGD(lr=0.1))
    found = [first.step(data[0])["loss"]]
    first.save(tmp_path / "c")
    for one, feeds in zip(later, data[1:]):
        one.load(tmp_path / "c")
        found.append(one.step(feeds)["loss"])
        one.save(tmp_path / "c")
    assert found == expected


def _seeded(seed: int) -> TrainingSession:
    return TrainingSession(mlp(dropout=0.3), CrossEntropy(), SGD(lr=0.1), {"seed": seed})


def test_a_checkpoint_of_another_model_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    one = session(SGD(lr=0.1))
    other = {**weights(), "w1": np.zeros((8, 17), np.float32), "b1": np.zeros(17, np.float32)}
    other["w2"] = np.zeros((17, 4), np.float32)
    two = TrainingSession(mlp(other), CrossEntropy(), SGD(lr=0.1))
    two.save(tmp_path / "other")
    with pytest.raises(CheckpointMismatch, match=r"'w1' is float32\[8, 17\], and the model has"):
        one.load(tmp_path / "other")
    np.testing.assert_array_equal(one.parameters["w1"], weights()["w1"])
    with pytest.raises(CheckpointMismatch, match="has no tensor 'optimizer/momentum_buffer/w1'"):
        session(SGD(lr=0.1, momentum=0.9)).load(saved(one, tmp_path))
    tensor_files.write(tmp_path / "bare", weights(), {})
    with pytest.raises(CheckpointMismatch, match="was not saved by a TrainingSession"):
        one.load(tmp_path / "bare")


@pytest.mark.parametrize("more", [0, 1])
def test_a_checkpoint_of_other_groups_is_refused_and_nothing_changes(more: int) -> None:
    grouped = session(SGD(lr=0.1), groups=[Group(parameters="w1", lr=0.2)])
    one, other = (grouped, session(SGD(lr=0.1)))[:: 1 if more else -1]
    one.step(batches(1)[0])
    law = rf"has {1 + more} learning rates, and this session has {2 - more}\ngive the session the g"
    with pytest.raises(CheckpointMismatch, match=law):
        other.restore(*one.checkpoint())
    np.testing.assert_array_equal(other.parameters["w1"], weights()["w1"])


def test_a_checkpoint_with_one_rate_fits_groups_of_the_same_rate() -> None:
    """As where a table of embeddings has an update of its own, and had none before."""
    one = session(SGD(lr=0.1))
    one.set_learning_rate(0.05)
    other = session(SGD(lr=0.1), groups=[Group(parameters="w1", lr=0.1)])
    other.restore(*one.checkpoint())
    assert next_rates(other) == [0.05, 0.05]


def test_a_rate_that_was_set_and_the_groups_ratios_are_saved(tmp_path: Path) -> None:
    groups = [Group(parameters="w1", lr=0.001)]
    one, other = (session(SGD(lr=0.1), groups=groups) for _ in range(2))
    one.set_learning_rate(0.0)
    one.save(tmp_path / "c")
    assert tensor_files.read(tmp_path / "c").properties["optimizer"]["learning_rate"] == 0.0
    other.load(tmp_path / "c")
    assert other.learning_rate == 0.0
    for each in (one, other):
        each.set_learning_rate(0.05)
        each.step(batches(1)[0])
    assert next_rates(other) == next_rates(one) == [0.0005, 0.05]
    for name, tensor in one.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], tensor)


def test_checkpoints_have_the_scheduled_learning_rate(tmp_path: Path) -> None:
    options = {"groups": [Group(parameters="w1", lr=0.001)], "schedule": Cosine(steps=4)}
    one = session(SGD(lr=0.1), **options)
    one.set_learning_rate(0.2)
    one.step(batches(1)[0])
    about = one.checkpoint()[1]["optimizer"]
    expected = {"learning_rate": one.learning_rate, "initial_learning_rate": 0.2, "step": 1}
    assert about == expected and about["learning_rate"] < 0.2


def test_a_checkpoint_of_version_0_1_still_loads() -> None:
    one, other = (session(SGD(lr=0.1), groups=[Group(parameters="w1", lr=0.2)]) for _ in range(2))
    one.set_learning_rate(0.05)
    tensors, properties = one.checkpoint()
    for key in ("learning_rate", "initial_learning_rates"):
        del properties["training"]["updates"][key]
    other.restore(tensors, properties)
    assert other.learning_rate == pytest.approx(0.05)
    assert next_rates(other) == [0.1, 0.05]


@pytest.mark.parametrize(
    "wrong",
    [
        {"updates": None},
        {"updates": {"steps": 1}},
        {"updates": {"steps": 1, "skipped": 0, "learning_rates": ["a"]}},
        {"scale": None},
        {"seed": "?"},
        {"micro": None},
        {"finite": 1},
    ],
    ids=repr,
)
def test_an_incomplete_checkpoint_is_refused_and_nothing_changes(wrong: Any) -> None:
    one, other = session(SGD(lr=0.1)), session(SGD(lr=0.1))
    one.step(batches(1)[0])
    tensors, properties = one.checkpoint()
    properties["training"] |= wrong
    with pytest.raises(CheckpointMismatch, match="it has no progress of training"):
        other.restore(tensors, properties)
    np.testing.assert_array_equal(other.parameters["w1"], weights()["w1"])
    assert other.steps == 0


def test_values_that_are_not_a_checkpoint_are_refused() -> None:
    one = session(SGD(lr=0.1))
    tensors, properties = one.checkpoint()
    with pytest.raises(CheckpointMismatch, match="the checkpoint was not saved by a TrainingSess"):
        one.restore(tensors, None)  # type: ignore[arg-type]
    law = (
        r"the checkpoint must have a dictionary of tensors, not list\n"
        r"give what session\.checkpoint\(\) r"
    )
    with pytest.raises(CheckpointMismatch, match=law):
        one.restore([], properties)  # type: ignore[arg-type]
    one.properties = 3  # type: ignore[assignment]
    with pytest.raises(
        CheckpointError, match=r"session\.properties must be a dictionary, not int\nset "
    ):
        one.checkpoint()


def test_a_dynamic_scale_may_follow_a_constant_one() -> None:
    one = session(SGD(lr=0.1))
    other = session(SGD(lr=0.1), loss_scale=DynamicLossScale(initial=8.0, interval=1))
    one.step(batches(1)[0])
    other.restore(*one.checkpoint())
    assert other.loss_scale == 8.0
    other.step(batches(1)[0])
    assert other.steps == 2 and other.loss_scale == 16.0


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, FileNotFoundError), match="nothing"):
        session(SGD(lr=0.1)).load(tmp_path / "nothing")


def test_sessions_go_on_from_a_folder_of_checkpoints(tmp_path: Path) -> None:
    one, kept = session(AdamW(lr=0.02)), Checkpoints(tmp_path, keep=2)
    for feeds in batches(4):
        loss = float(one.step(feeds)["loss"])
        kept.save(*one.checkpoint(), step=one.steps, metric=loss)
    two = session(AdamW(lr=0.02))
    found = kept.latest()
    two.restore(found.tensors, found.properties)
    assert two.steps == 4
    for name, tensor in one.parameters.items():
        np.testing.assert_array_equal(tensor, two.parameters[name])


def saved(one: TrainingSession, folder: Path) -> Path:
    one.save(folder / "saved")
    return folder / "saved"
