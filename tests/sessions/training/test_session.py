"""TrainingSession: steps, the same apart, accumulation, and what comes back."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import onward
from onward.errors import FeedError, FileMissing, OptionError
from onward.losses import L1, MSE, CrossEntropy, Output, Total
from onward.optimizers import SGD, AdamW
from onward.optimizers.ema import EMA
from onward.optimizers.groups import Group
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.programs.training_options import TrainingOptions
from onward.sessions.training.session import TrainingSession
from tests.models_ml import STRING, ml, table
from tests.models_ml import model as ml_model
from tests.sessions.training.small import batches, mlp, next_rates, torch_mlp, weights


def session(
    optimizer: Any = None, model: Any = None, loss: Any = None, **options: Any
) -> TrainingSession:
    return TrainingSession(
        model if model is not None else mlp(),
        loss or CrossEntropy(),
        optimizer or SGD(lr=0.1),
        TrainingOptions(**options),
    )


def trained(one: TrainingSession, steps: int = 4) -> dict[str, Any]:
    for feeds in batches(steps):
        one.step(feeds)
    return {name: tensor.copy() for name, tensor in one.parameters.items()}


def same(a: dict[str, Any], b: dict[str, Any], tolerance: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance, rtol=tolerance, err_msg=name)


def test_the_loss_falls_and_outputs_come_back() -> None:
    one = session(AdamW(lr=0.02))
    losses = [one.step(feeds) for feeds in batches(60)]
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
    assert losses[0]["loss"].shape == () and losses[0]["logits"].shape == (12, 4)
    assert one.steps == 60
    assert one.input_names == ["x", "labels"] and one.output_names == ["loss", "logits"]


def test_forward_backward_and_update_equal_one_step() -> None:
    whole, apart = session(AdamW(lr=0.02)), session(AdamW(lr=0.02))
    for feeds in batches(5):
        one, other = whole.step(feeds), apart.run_forward(feeds)
        np.testing.assert_array_equal(one["loss"], other["loss"])
        np.testing.assert_array_equal(one["logits"], other["logits"])
        apart.run_backward()
        assert set(apart.get_gradients()) == {"w1", "b1", "w2", "b2"}
        assert apart.update_weights()
    same(whole.parameters, apart.parameters, 1e-6)


def test_the_backward_needs_a_forward_and_an_update_needs_gradients() -> None:
    one = session()
    with pytest.raises(OptionError, match="run_backward needs a forward pass\ncall run_for"):
        one.run_backward()
    with pytest.raises(OptionError, match="there are no gradients to update with"):
        one.update_weights()


def test_gradients_match_torch() -> None:
    import torch

    one, (parameters, forward) = session(), torch_mlp()
    feeds = batches(1)[0]
    one.run_forward(feeds)
    one.run_backward()
    torch.nn.functional.cross_entropy(forward(feeds["x"]), torch.tensor(feeds["labels"])).backward()
    same(one.get_gradients(), {n: p.grad.numpy() for n, p in parameters.items()}, 1e-6)
    norm = np.sqrt(sum(float((p.grad**2).sum()) for p in parameters.values()))
    one.update_weights()
    assert one.gradient_norm == pytest.approx(norm, rel=1e-5)


def test_micro_batches_add_up_to_the_batch() -> None:
    whole, parts = session(AdamW(lr=0.02)), session(AdamW(lr=0.02), accumulate=3)
    for feeds in batches(4):
        whole.step(feeds)
        for i in range(3):
            parts.step({name: array[i * 4 : i * 4 + 4] for name, array in feeds.items()})
        assert parts.steps == whole.steps
    same(whole.parameters, parts.parameters, 1e-5)


def test_micro_batches_accumulate_without_the_option() -> None:
    whole, parts = session(AdamW(lr=0.02)), session(AdamW(lr=0.02))
    for feeds in batches(3):
        whole.step(feeds)
        for i in range(2):
            parts.run_forward({name: array[i * 6 : i * 6 + 6] for name, array in feeds.items()})
            parts.run_backward()
        parts.update_weights()
    same(whole.parameters, parts.parameters, 1e-5)


def test_accumulated_gradients_can_be_cleared() -> None:
    one, other = session(accumulate=2), session(accumulate=2)
    feeds = batches(3)
    one.step(feeds[2])
    one.clear_gradients()
    for each in feeds[:2]:
        one.step(each)
        other.step(each)
    same(one.parameters, other.parameters)


def test_clipping_by_norm_matches_torch() -> None:
    import torch

    one, (parameters, forward) = session(clip_norm=0.05), torch_mlp()
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    for feeds in batches(5):
        one.step(feeds)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            forward(feeds["x"]), torch.tensor(feeds["labels"])
        ).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 0.05)
        optimizer.step()
    same(one.parameters, {n: p.detach().numpy() for n, p in parameters.items()}, 1e-6)


def test_clipping_by_value_bounds_every_element() -> None:
    one = session(SGD(lr=1.0), clip_value=1e-3)
    before = {name: tensor.copy() for name, tensor in one.parameters.items()}
    one.step(batches(1)[0])
    for name, tensor in one.parameters.items():
        assert np.abs(tensor - before[name]).max() <= 1e-3 + 1e-7


def test_frozen_parameters_and_groups_stay_or_differ() -> None:
    one = session(
        frozen=["b*"], groups=[Group(parameters="w1", lr=0.0), Group(parameters=["w2"], lr=0.5)]
    )
    assert set(one.parameters) == {"w1", "w2"}
    after = trained(one)
    np.testing.assert_array_equal(after["w1"], weights()["w1"])
    assert not np.array_equal(after["w2"], weights()["w2"])


def test_a_pattern_without_a_match_is_refused() -> None:
    with pytest.raises(
        OptionError, match=r"frozen: 'w9' matches no weight of the model\n.*; there"
    ):
        session(frozen=["w9"])
    with pytest.raises(OptionError, match="there is nothing to train"):
        session(frozen=["*"])


def test_the_learning_rate_can_be_set_and_groups_keep_their_proportion() -> None:
    one = session(SGD(lr=0.1), groups=[Group(parameters="w1", lr=0.2)])
    assert one.learning_rate == 0.1
    one.set_learning_rate(0.02)
    assert one.learning_rate == 0.02
    assert next_rates(one) == [0.04, 0.02]
    with pytest.raises(OptionError, match="a learning rate must be a number, 0 or more, not -1"):
        one.set_learning_rate(-1)


def test_gradients_that_are_not_finite_change_nothing(caplog: Any) -> None:
    one = session(AdamW(lr=0.02))
    trained(one)
    before = {name: tensor.copy() for name, tensor in one.checkpoint()[0].items()}
    bad = batches(1)[0]
    bad["x"][3, 2] = np.nan
    with caplog.at_level(logging.WARNING, "onward"):
        assert np.isnan(one.step(bad)["loss"])
    assert "gradients are not finite, no update" in caplog.text
    same(one.checkpoint()[0], before)
    assert one.skipped_steps == 1 and one.steps == 4


def test_large_but_finite_gradients_are_not_taken_for_infinite() -> None:
    one = session(loss=Total({"a": (CrossEntropy(), 1e25)}), optimizer=SGD(lr=0.0))
    one.step(batches(1)[0])
    assert one.skipped_steps == 0 and one.gradient_norm > 1e20


def test_parts_of_a_total_come_back_by_name() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    y = op.MatMul(x, op.initializer("w", np.ones((3, 1), np.float32)))
    loss = Total({"squares": MSE(), "lines": (L1(), 0.5)})
    one = session(model=op.model(y=y), loss=loss)
    feeds = {"x": np.ones((2, 3), np.float32), "target": np.zeros((2, 1), np.float32)}
    found = one.step(feeds)
    assert found["loss.squares"] == 9 and found["loss.lines"] == 3 and found["loss"] == 10.5


def test_an_output_of_the_model_can_be_the_loss() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    y = op.MatMul(x, op.initializer("w", np.ones((3, 1), np.float32)))
    one = session(
        model=op.model(y=y, loss=op.ReduceMean(op.Mul(y, y), keepdims=0)), loss=Output("loss")
    )
    found = one.step({"x": np.ones((2, 3), np.float32)})
    assert found["loss"] == 9 and one.output_names == ["loss", "y"]
    assert one.predict({"x": np.ones((2, 3), np.float32)}).keys() == {"y", "loss"}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((2, 8), np.float32)}, "input 'labels' is missing"),
        ({"x": np.zeros((2, 8)), "labels": np.zeros(2, np.int64)}, "'x' takes tensor.float."),
        ({"x": np.zeros((2, 7), np.float32), "labels": np.zeros(2, np.int64)}, "dimension 1 is 7"),
        ({"x": np.zeros((2, 8), np.float32), "labels": np.zeros(3, np.int64)}, "dimension 'batch'"),
        ({"x": np.zeros((2, 8), np.float32), "labels": np.array([0, 4])}, r"holds 4 at \[1\]"),
        ({"x": np.zeros((2, 8), np.float32), "labels": np.array([-1, 0])}, r"holds -1 at \[0\]"),
        ({"x": 0, "labels": 0, "z": 0}, "no input 'z'"),
    ],
)
def test_wrong_feeds_are_named_and_nothing_is_lost(feeds: Any, message: str) -> None:
    one, other = session(AdamW(lr=0.02)), session(AdamW(lr=0.02))
    with pytest.raises(FeedError, match=message):
        one.step(feeds)
    same(trained(one), trained(other))


def test_lists_and_views_are_taken_as_arrays() -> None:
    one = session()
    feeds = batches(1)[0]
    one.step({"x": np.asfortranarray(feeds["x"]), "labels": list(map(int, feeds["labels"]))})
    assert one.steps == 1


def test_labels_that_are_ignored_are_no_error() -> None:
    one = session(loss=CrossEntropy(ignore_index=-100))
    feeds = batches(1)[0]
    feeds["labels"][0] = -100
    assert np.isfinite(one.step(feeds)["loss"])


def test_dropout_is_a_function_of_seed_and_step() -> None:
    feeds = batches(1)[0]
    runs = [session(SGD(lr=0.0), mlp(dropout=0.5), seed=seed) for seed in (1, 1, 2)]
    first, again, other = ([one.step(feeds)["loss"] for _ in range(3)] for one in runs)
    assert first == again and first != other and len(set(map(float, first))) == 3
    assert runs[0].evaluate(feeds)["loss"] == session(SGD(lr=0.0), mlp()).evaluate(feeds)["loss"]


def test_weights_are_averaged(tmp_path: Path) -> None:
    one = session(average=EMA(decay=0.5))
    expected = weights()
    for feeds in batches(3):
        one.step(feeds)
        expected = {n: 0.5 * a + 0.5 * one.parameters[n] for n, a in expected.items()}
    same(one.averages, expected, 1e-6)
    one.export(tmp_path / "a.onnx", averaged=True)
    x = batches(1)[0]["x"]
    [logits] = onward.InferenceSession(tmp_path / "a.onnx").run(None, {"x": x})
    [wanted] = onward.InferenceSession(mlp(expected)).run(None, {"x": x})
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
    with pytest.raises(OptionError, match=r"there is no average\nset TrainingOptions.average"):
        session().export(tmp_path / "b.onnx", averaged=True)


def test_float16_models_train_in_float32_with_a_loss_scale(tmp_path: Path) -> None:
    scale = DynamicLossScale(initial=2.0**10, interval=3)
    half = session(SGD(lr=0.5), mlp(dtype="float16"), loss_scale=scale)
    full = session(SGD(lr=0.5))
    for feeds in batches(6):
        half.step({"x": feeds["x"].astype(np.float16), "labels": feeds["labels"]})
        full.step(feeds)
    assert half.parameters["w1"].dtype == np.float32
    assert half.loss_scale == 2.0**12
    same(half.parameters, full.parameters, 2e-3)
    half.export(tmp_path / "half.onnx")
    model = onward.load(tmp_path / "half.onnx")
    assert model.graph.initializers["w1"].dtype.name == "FLOAT16"


@pytest.mark.parametrize("device", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_float64_models_train_with_a_loss_scale_in_float64(device: str) -> None:
    found = []
    for scale in (None, 0.7):
        options = TrainingOptions(loss_scale=scale)
        model, optimizer = mlp(dtype="float64"), SGD(lr=0.5)
        one = TrainingSession(model, CrossEntropy(), optimizer, options, providers=[device])
        for feeds in batches(3):
            one.step({"x": feeds["x"].astype(np.float64), "labels": feeds["labels"]})
        found.append({name: np.array(tensor) for name, tensor in one.parameters.items()})
    same(found[0], found[1], 1e-14)


def test_a_loss_scale_backs_off_when_gradients_overflow() -> None:
    one = session(
        loss_scale=DynamicLossScale(initial=2.0**127, interval=100), optimizer=SGD(lr=0.1)
    )
    one.step(batches(1)[0])
    assert one.skipped_steps + one.steps == 1
    constant = session(loss_scale=1024.0)
    plain = session()
    same(trained(constant), trained(plain), 1e-6)


@pytest.mark.parametrize("providers", [["TorchExecutionProvider"], ["CPUExecutionProvider"], None])
def test_every_provider_trains_alike(providers: Any) -> None:
    one = TrainingSession(mlp(), CrossEntropy(), AdamW(lr=0.02), providers=providers)
    same(trained(one), trained(session(AdamW(lr=0.02))), 1e-5)


def test_parameters_can_be_read_and_set() -> None:
    one = session()
    one.set_parameters({"b1": np.ones(16)})
    assert one.parameters["b1"].tolist() == [1] * 16
    with pytest.raises(OptionError, match=r"parameter 'b1' has shape \(16,\), not \(3,\)"):
        one.set_parameters({"w1": np.zeros((8, 16)), "b1": np.ones(3)})
    assert one.parameters["w1"].any()
    with pytest.raises(OptionError, match="there is no parameter 'w9'\nthere are 'w1'"):
        one.set_parameters({"w9": np.ones(3)})


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__
)
def test_copying_a_session_is_refused_with_advice(copied: Any) -> None:
    one, other = session(AdamW(lr=0.02)), session(AdamW(lr=0.02))
    trained(one)
    law = r"a TrainingSession cannot be copied or pickled: .*\nopen another one.* other\.restore\("
    with pytest.raises(OptionError, match=law):
        copied(one)
    other.restore(*one.checkpoint())  # as it says
    same(trained(one), trained(other))


def test_a_session_needs_a_loss_and_an_optimizer() -> None:
    with pytest.raises(OptionError, match="it has no loss\nfor example: TrainingSession"):
        TrainingSession(mlp())
    with pytest.raises(OptionError, match="it has no optimizer"):
        TrainingSession(mlp(), CrossEntropy())


def test_a_value_called_loss_that_is_not_the_loss_is_refused() -> None:
    op = onward.OpBuilder()
    y = op.MatMul(
        op.input("x", "float32", (2, 3)), op.initializer("w", np.ones((3, 2), np.float32))
    )
    with pytest.raises(OptionError, match="has a value 'loss' that is not the loss"):
        session(model=op.model(loss=op.Relu(y)), loss=MSE())


def test_outputs_can_be_chosen() -> None:
    assert session(outputs=[]).output_names == ["loss"]
    with pytest.raises(OptionError, match="outputs: the model has no value 'nothing'"):
        session(outputs=["nothing"])


@pytest.mark.parametrize(
    "loss", [CrossEntropy(label_smoothing=0.1), Total([CrossEntropy(weight=(1, 2, 3, 4))])]
)
def test_labels_are_checked_however_the_loss_is_spelled(loss: Any) -> None:
    one = session(loss=loss)
    feeds = batches(1)[0]
    feeds["labels"][5] = 9
    with pytest.raises(FeedError, match=r"'labels' holds 9 at \[5\]: classes go from 0 to 3"):
        one.step(feeds)


def test_outputs_that_a_step_leaves_out_are_predicted_all_the_same() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 3))
    scores = op.MatMul(x, op.initializer("w", np.ones((3, 2), np.float32)))
    model = op.model(scores=scores, probabilities=op.Softmax(scores, axis=-1))
    one = session(model=model, loss=CrossEntropy(output="scores"), outputs=["scores"])
    assert one.output_names == ["loss", "scores"]
    found = one.predict({"x": np.ones((2, 3), np.float32)})
    assert found["probabilities"].tolist() == [[0.5, 0.5]] * 2


def test_a_path_where_nothing_is_is_named() -> None:
    with pytest.raises(FileMissing, match="no model at programm"):
        TrainingSession("programm")


def test_a_model_that_takes_texts_trains_like_one_that_takes_their_columns() -> None:
    kinds = np.array([["cat"], ["dog"], ["dog"], ["cat"], ["cat"]], object)
    labels = np.array([0, 1, 1, 0, 1])
    names = {"cats_strings": ["cat", "dog"], "zeros": 1}
    encode = ml("OneHotEncoder", ["kind"], ["columns"], **names)
    weight = numpy_helper.from_array(np.array([[0.5, -0.2], [0.1, 0.3]], np.float32), "w")
    score = helper.make_node("MatMul", ["flat", "w"], ["scores"])
    flatten = helper.make_node("Flatten", ["columns"], ["flat"])
    scores = table("scores", 2)
    of_texts = ml_model([encode, flatten, score], [table("kind", 1, STRING)], [scores], [weight])
    of_columns = ml_model([score], [table("flat", 2)], [scores], [weight])
    columns = (kinds == ["cat", "dog"]).astype(np.float32)
    for optimizer in (SGD(lr=0.1), AdamW(lr=0.1)):
        texts, plain = session(optimizer, of_texts), session(optimizer, of_columns)
        for _ in range(4):
            one = texts.step({"kind": kinds, "labels": labels})
            other = plain.step({"flat": columns, "labels": labels})
            np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-5)
        same(dict(texts.parameters), dict(plain.parameters), 1e-6)
