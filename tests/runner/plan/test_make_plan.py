"""Plans of runs: what is guessed from a model, its data and a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from onward.errors import ColumnMissing, DataError, OnwardError, OptionError
from onward.losses.classification import BCEWithLogits, CrossEntropy
from onward.losses.regression import MSE
from onward.optimizers.schedules import Cosine, Linear, WarmUp
from onward.runner.architectures.new_model import new_model
from tests.models_ml import linear_classifier, ml, scaler
from tests.models_ml import model as ml_model
from tests.models_ml import table as features
from tests.runner.plan.planned_runs import export, images, mlp, plan_of, reasons, table, train

X = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
LABELS = np.arange(12) % 3


def test_table_with_classes_is_classified() -> None:
    plan = plan_of(mlp(), table())
    assert plan.loss == CrossEntropy(output="scores", target="target")
    assert plan.classes == ("bird", "cat", "dog")
    assert plan.monitor == "val_accuracy" and plan.higher_is_better
    assert plan.steps == 3 * 5 and plan.sizes == {"training rows": 18, "validation rows": 2}
    chosen = reasons(plan)
    assert chosen["target"] == "kind" and chosen["input x"] == "a, b, c, d"
    feeds = next(plan.training.epoch(0)).feeds
    assert feeds["x"].dtype == np.float32 and feeds["x"].shape == (4, 4)
    assert feeds["target"].dtype == np.int64 and set(train(plan)) == {"loss", "accuracy", "f1"}


def test_column_called_like_the_input_is_one_of_its_columns() -> None:
    data = dict(zip("wxyz", [table()[name] for name in "abcd"]))
    plan = plan_of(mlp(), {**data, "kind": table()["kind"]}, target="kind")
    assert reasons(plan)["input x"] == "w, x, y, z"


def test_numbers_are_standardised_over_the_training_rows() -> None:
    plan = plan_of(mlp(), table(), batch_size=18)
    [batch] = plan.training.epoch(0)
    assert np.allclose(batch.feeds["x"].mean(0), 0, atol=1e-6)
    assert np.allclose(batch.feeds["x"].std(0), 1, atol=1e-5)
    raw = plan_of(mlp(), table(), standardize=False, batch_size=18)
    [batch] = raw.training.epoch(0)
    row = batch.positions[0]
    assert np.allclose(batch.feeds["x"][0], [table()[name][row] for name in "abcd"])


def test_float_target_is_a_regression() -> None:
    data = {name: values for name, values in table().items() if name != "kind"}
    plan = plan_of(mlp(classes=1), {**data, "y": np.arange(20.0)})
    assert plan.loss == MSE(output="scores", target="target")
    assert plan.monitor == "val_mae" and not plan.higher_is_better
    assert [metric.name for metric in plan.make_metrics()] == ["mae", "r2"]


def test_two_classes_and_one_output_are_binary() -> None:
    data = {**table(), "kind": ["no", "yes"] * 10}
    plan = plan_of(mlp(classes=1), data)
    assert plan.loss == BCEWithLogits(output="scores", target="target")
    assert plan.classes == ("no", "yes")
    assert next(plan.training.epoch(0)).feeds["target"].shape == (4, 1)


@pytest.mark.parametrize("setting", [{"mixup": 0.4}, {"label_smoothing": 0.1}, {"ignore_index": 0}])
def test_settings_of_cross_entropy_are_refused_for_other_losses(setting: dict[str, Any]) -> None:
    data = {**table(), "kind": ["no", "yes"] * 10}
    with pytest.raises(OptionError, match=f"{next(iter(setting))} is for classifiers"):
        plan_of(mlp(classes=1), data, **setting)


def test_text_columns_become_one_hot() -> None:
    plan = plan_of(mlp(features=6, classes=1), table(), target="a")
    assert reasons(plan)["one-hot"] == "kind"


@pytest.mark.parametrize("shape", [(6, 6), (1, 6, 6), (6, 6, 1)])
def test_bytes_of_any_layout_feed_an_image_input(shape: tuple[int, ...]) -> None:
    model = new_model("cnn", image=(1, 6, 6), classes=3)
    data = {"pixels": images(12, *shape), "digit": LABELS}
    plan = plan_of(model, data, flip=True, crop=1)
    assert next(plan.training.epoch(0)).feeds["image"].shape == (4, 1, 6, 6)


def test_channels_last_input_of_channels_first_images() -> None:
    op = onward.OpBuilder()
    x = op.input("image", "float32", ("batch", 5, 6, 3))
    w = op.initializer("w", np.ones((90, 2), np.float32))
    model = op.model(scores=op.MatMul(op.Flatten(x), w))
    data = {"image": images(8, 3, 5, 6), "label": ["a", "b"] * 4}
    plan = plan_of(model, data, standardize=False)
    batch = next(plan.validation.epoch(0)) if plan.validation else None
    assert batch is not None
    wanted = data["image"][batch.positions].transpose(0, 2, 3, 1) / np.float32(255)  # type: ignore[call-overload]
    assert np.allclose(batch.feeds["image"], wanted)


def test_mixup_trains_on_weights_of_classes() -> None:
    op = onward.OpBuilder()
    pixels = op.Flatten(op.input("image", "float32", ("batch", 1, 6, 6)))
    w = op.initializer("w", np.ones((36, 3), np.float32))
    model = op.model(scores=op.MatMul(pixels, w))
    plan = plan_of(model, {"image": images(12, 1, 6, 6), "label": LABELS}, mixup=0.4)
    feeds = next(plan.training.epoch(0)).feeds
    assert feeds["target"].shape == (4, 3) and np.allclose(feeds["target"].sum(1), 1)
    assert set(train(plan)) == {"loss", "accuracy", "f1"}
    with pytest.raises(OptionError, match="flip is for images"):
        plan_of(mlp(), table(), flip=True)


def test_autoencoder_is_compared_with_its_input() -> None:
    data = {name: values for name, values in table().items() if name != "kind"}
    plan = plan_of(new_model("autoencoder", features=4), data)
    assert plan.loss == MSE(output="reconstruction", target="x") and plan.target == "x"


def test_pixel_labels_are_classes_on_axis_1() -> None:
    model = new_model("unet", image=(3, 16, 16), classes=2)
    masks = np.random.default_rng(0).integers(0, 2, (6, 16, 16))
    plan = plan_of(model, {"image": images(6, 3, 16, 16), "mask": masks})
    assert plan.loss == CrossEntropy(output="mask", target="target", axis=1)


def test_text_is_a_language_model(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("hello world. " * 20)
    model = new_model("gpt2", layers=1, heads=1, width=4, vocabulary=12, context=8)
    plan = plan_of(model, path)
    assert plan.loss == CrossEntropy(output="scores", target="target", axis=2)
    assert plan.monitor == "val_perplexity" and not plan.higher_is_better
    assert plan.preprocessing.vocabulary is not None
    assert plan.preprocessing.vocabulary.characters == " .dehlorw"
    assert next(plan.training.epoch(0)).feeds["tokens"].shape == (4, 8)
    with pytest.raises(DataError, match=r"9 different characters, the model has 5 tokens\n"):
        small = new_model("gpt2", layers=1, heads=1, width=4, vocabulary=5, context=8)
        plan_of(small, path)
    with pytest.raises(OptionError, match="the model has 8 positions"):
        plan_of(model, path, block=9)


def test_tokens_of_different_lengths_are_padded() -> None:
    model = new_model("lstm", vocabulary=9, width=4, classes=2)
    rows = [{"tokens": list(range(1, 2 + i % 3)), "label": "ab"[i % 2]} for i in range(8)]
    plan = plan_of(model, rows)
    assert next(plan.training.epoch(0)).feeds["tokens"].shape == (4, 3)
    with pytest.raises(DataError, match=r"'tokens' takes tokens .* column 'words' has texts\n"):
        plan_of(model, {"words": ["a b", "c"] * 4, "label": [0, 1] * 4})
    with pytest.raises(
        DataError, match="\ncharacters are tokens of language models only: give its"
    ):
        plan_of(model, {"words": ["a b"] * 8, "label": [0, 1] * 4}, tokenizer="characters")


def test_features_of_different_lengths_are_refused() -> None:
    rows = [{"x": [0.5] * (3 if i == 5 else 4), "label": i % 3} for i in range(20)]
    plan = plan_of(new_model("mlp", features=4, classes=3), rows)
    with pytest.raises(DataError, match=r"row 5, column 'x' has 3 values, the .* takes 4\npad it"):
        list(plan.training.epoch(0))


def test_rows_of_different_shapes_are_refused() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", "height", 2))
    w = op.initializer("w", np.ones((2, 2), np.float32))
    axes = op.initializer("axes", np.array([1]))
    model = op.model(y=op.ReduceMean(op.MatMul(x, w), axes, keepdims=0))
    rows = [{"x": np.ones((2 + i % 2, 2), np.float32), "label": i % 2} for i in range(20)]
    message = r"column 'x': an array of shape \(\d, 2\), of a size of its own, cannot be .*\ngive "
    with pytest.raises(DataError, match=message):
        next(plan_of(model, rows).training.epoch(0))


def test_validation_data_without_the_target_is_refused() -> None:
    data = {"x": X, "label": LABELS}
    with pytest.raises(ColumnMissing, match=r"the validation data has no column 'label'\nits col"):
        plan_of(mlp(), data, validation={"x": X})


def test_target_of_several_columns() -> None:
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=40) for name in "abcd"}
    data = {**x, "u": x["a"] * 2, "v": np.arange(40) % 5}
    model = mlp(classes=2)
    plan = plan_of(model, data, target="u+v", validation=data)
    assert isinstance(plan.loss, MSE)
    assert next(plan.training.epoch(0)).feeds[plan.target].shape == (4, 2)
    flags = {**x, "u": x["a"] > 0, "v": x["b"] > 0}
    assert isinstance(plan_of(model, flags, target="u+v").loss, BCEWithLogits)
    with pytest.raises(ColumnMissing, match=r"no column 'w' \(target\)\n"):
        plan_of(model, data, target="u+w")
    with pytest.raises(ColumnMissing, match=r"joined with \+: target='u\+v'"):
        plan_of(model, data, target="u, v")
    with pytest.raises(DataError, match="made of 2 columns, of which 'v' is text"):
        plan_of(model, {**data, "v": ["a"] * 40}, target="u+v")
    with pytest.raises(DataError, match=r"which column .*\nsay it: target='v', or another one"):
        plan_of(model, data)
    of_array = {"x": np.stack([*x.values()], axis=1), "u": data["u"], "v": data["v"]}
    with pytest.raises(DataError, match=r"no input takes 'u', 'v'\nsay it: target='u\+v'"):
        plan_of(model, of_array)


def test_targets_of_pairs_may_have_other_names() -> None:
    inputs = {name: values for name, values in table().items() if name != "kind"}
    training = (inputs, {"kind": table()["kind"]})
    assert plan_of(mlp(), training, (inputs, table()["kind"])).validation is not None


def test_columns_called_as_outputs_are_targets() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 2))
    w = op.initializer("w", np.ones((2, 1), np.float32))
    model = op.model(price=op.MatMul(x, w), tax=op.Sigmoid(op.MatMul(x, w)))
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=20) for name in ("a", "b", "tax", "price")}
    plan = plan_of(model, data)
    choices = {each.what: each.value for each in plan.choices}
    assert choices["target"] == "price" and choices["left out"] == "tax"
    assert plan.preprocessing.inputs[0].columns == ("a", "b")
    assert plan_of(model, data, target="tax").output != "price"


def test_softmax_at_the_end_is_left_out_of_the_loss() -> None:
    op = onward.OpBuilder(opset=11)
    x = op.input("input.1", "float32", ("n", 4))
    w = op.initializer("w", np.ones((4, 3), np.float32) / 4)
    scores = op.MatMul(x, w)
    scores.name = "linear_1"
    plan = plan_of(op.model(probabilities=op.Softmax(scores, axis=1)), table())
    assert plan.output == "linear_1" and plan.preprocessing.output == "probabilities"
    assert train(plan)["loss"] == pytest.approx(np.log(3), abs=0.1)


def test_sigmoid_at_the_end_is_left_out_of_the_loss(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 4))
    scores = op.MatMul(x, op.initializer("w", np.ones((4, 1), np.float32)))
    plan = plan_of(op.model(p=op.Sigmoid(scores)), {**table(), "kind": ["no", "yes"] * 10})
    assert isinstance(plan.loss, BCEWithLogits) and plan.output != "p"
    assert plan.preprocessing.decode({"p": np.array([[0.4], [0.6]])}) == ["no", "yes"]


def test_logistic_regression_is_trained_on_its_scores(tmp_path: Path) -> None:
    normalizer = ml("Normalizer", ["scores"], ["probabilities"], norm="L1")
    nodes = [scaler(), linear_classifier(), normalizer]
    onnx.save(ml_model(nodes, [features()], ["label", "probabilities"]), tmp_path / "lr.onnx")
    plan = plan_of(tmp_path / "lr.onnx", {"x": X, "label": LABELS})
    loss = next(each for each in plan.choices if each.what == "loss")
    assert plan.output == "label/Gemm" and "before the final Softmax" in loss.why
    train(plan)


def test_fixed_batch_size_of_a_model_is_kept() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (2, 4))
    plan = plan_of(
        op.model(y=op.MatMul(x, op.initializer("w", np.ones((4, 3), np.float32)))), table()
    )
    assert plan.training.size == 2 and reasons(plan)["batch size"] == "2"


def test_columns_that_cannot_be_read_are_named_where_an_input_has_none() -> None:
    rows = [{"f": {"a": 1.0, "b": 2.0}, "label": n % 3} for n in range(12)]
    with pytest.raises(DataError, match=r"no column is left for the .* 'f' has values that cannot"):
        plan_of(mlp(), rows)


def test_validation_data_of_its_own() -> None:
    plan = plan_of(mlp(), {"x": X, "label": LABELS}, {"x": X[:5], "label": LABELS[:5]})
    assert plan.sizes == {"training rows": 12, "validation rows": 5}
    with pytest.raises(DataError, match="label 7 in row 1, column 'label', is out of range"):
        plan_of(mlp(), {"x": X, "label": LABELS}, {"x": X[:2], "label": np.array([0, 7])})
    both = {"x": X, "label": LABELS}
    shares = {
        share: next(each.why for each in plan_of(mlp(), both, both, validation_split=share).choices
                    if each.what == "validation")
        for share in (0.1, 0.25)
    }  # fmt: skip
    assert shares[0.1] == "data of their own"
    assert shares[0.25] == "data of their own; validation_split 0.25 is not used"
    plan = plan_of(mlp(), {"x": X, "label": LABELS}, validation_split=0)
    assert plan.validation is None and plan.monitor == "loss" and not plan.higher_is_better


def test_learning_settings() -> None:
    data = {"x": X, "label": LABELS}
    plan = plan_of(
        mlp(), data, data, optimizer="sgd", learning_rate=0.5, schedule="linear",
        warmup=0.5, epochs=4, validation_split=0, max_grad_norm=1.0, ema=0.9, seed=3, max_steps=8,
        gradient_accumulation_steps=1, balance=True, metrics=["top2", "log_loss"],
    )  # fmt: skip
    assert plan.steps == 8 and plan.optimizer.lr == 0.5
    schedule = WarmUp(steps=4, schedule=Linear(steps=4), start_factor=0.2)
    assert plan.options.schedule == schedule
    assert plan.options.clip_norm == 1.0 and plan.options.average is not None
    assert [metric.name for metric in plan.make_metrics()] == ["top2", "log_loss"]
    twice = plan_of(mlp(), data, gradient_accumulation_steps=2)
    assert twice.steps == 3 * 3 // 2 and twice.options.schedule == Cosine(steps=4)


def test_precision_is_explained() -> None:
    data = {"x": X, "label": LABELS}
    for setting, expected in (
        ("bf16", "precision: bfloat16 (as given)"),
        ("float16", "precision: float16 (as given)"),
        ("auto", "precision: float32 (what the provider is faster with)"),
    ):
        provider = "cpu" if setting == "auto" else "torch"
        plan = plan_of(mlp(), data, mixed_precision=setting, provider=provider)
        assert expected in map(str, plan.choices)
    assert not any("precision" in each.what for each in plan_of(mlp(), data).choices)


def test_trained_model_keeps_its_preprocessing(tmp_path: Path) -> None:
    plan = plan_of(mlp(), table())
    path = export(plan, tmp_path / "model.onnx")
    more = {name: np.asarray(values)[:9] for name, values in table(40).items() if name != "kind"}
    again = plan_of(path, {**more, "kind": ["dog"] * 9})
    assert again.preprocessing.inputs == plan.preprocessing.inputs
    assert again.classes == ("bird", "cat", "dog")  # the numbers of classes stay


@pytest.mark.parametrize(
    ("data", "settings", "error", "message"),
    [
        (
            table(),
            {"target": "kin"},
            ColumnMissing,
            "no column 'kin' (target)\ndid you mean 'kind'",
        ),
        (table(), {"inputs": {"z": ["a"]}}, OptionError, "the model has no input 'z'\n"),
        (table(), {"inputs": {"x": ["e"]}}, ColumnMissing, "inputs: the data has no column 'e'\n"),
        (table(), {"ignore_columns": ["ab"]}, ColumnMissing, "ignore_columns: the data has no"),
        (
            table(),
            {"target": "kind", "ignore_columns": ["d"]},
            DataError,
            "the model's input 'x' has 4 features, the columns a, b, c give 3\nchoose columns",
        ),
        (
            {"x": X, "label": LABELS % 2 + 2},
            {},
            DataError,
            "label 3 in row 1, column 'label', is out",
        ),
        (
            {**table(), "customer_id": np.arange(20)},
            {"target": "kind"},
            DataError,
            "give 5\nleave it out: ignore_columns=['customer_id']",
        ),
        (
            {**table(), "day": [f"2024-01-{day:02}" for day in range(1, 21)]},
            {"target": "kind"},
            DataError,
            "leave it out: ignore_columns=['day']",
        ),
        (
            {**table(), "d": [f"{row},5" for row in range(20)]},
            {"target": "kind"},
            DataError,
            "'d' has numbers with a decimal comma: write them with a point",
        ),
        (
            {**table(), "d": [f"{row + 1},234.5" for row in range(20)]},
            {"target": "kind"},
            DataError,
            "'d' has numbers such as '1,234.5': write them without separators",
        ),
        (
            {**table(), "d": [f"{row} %" for row in range(20)]},
            {"target": "kind"},
            DataError,
            "'d' has numbers such as '0 %': write them without the unit",
        ),
        (  # numbers that are to be texts
            {**table(), "d": [f"{row}.125" for row in range(20)]},
            {"target": "kind"},
            DataError,
            "a, b, c, d (20) give 23\nchoose columns",
        ),
        ({"x": X, "label": LABELS / 2}, {}, DataError, "no loss fits target 'label', float"),
        ({"x": X[:1], "label": LABELS[:1]}, {}, DataError, "1 row: none is left to evaluate on\n"),
        ({"x": X[:0], "label": LABELS[:0]}, {}, DataError, "the data is empty"),
        ({"x": X, "p": X, "q": X}, {}, DataError, "which column should the model predict?"),
        ({"x": X, "label": LABELS}, {"monitor": "val_acuracy"}, OptionError, "is not measured\n"),
        ({"x": X, "label": LABELS}, {"metrics": ["acuracy"]}, OptionError, "no metric 'acuracy'\n"),
        ({"x": X, "label": LABELS}, {"batch_size": "auto"}, OptionError, "batch_size is 'auto'"),
        ({"x": X, "y": X[:, 0]}, {"balance": True, "loss": "mse"}, OnwardError, "mse compares"),
        (None, {}, OptionError, "there is no data to train on\n"),
        (
            {"x": X, "label": [*"abcd"] * 3},
            {},
            DataError,
            "target 'label' has 4 classes (a, b, c, d), the model's output 'scores' has 3\n"
            "give the model a new last layer: new_head=4",
        ),
    ],
)
def test_errors(data: Any, settings: Any, error: type[OnwardError], message: str) -> None:
    with pytest.raises(error) as caught:
        plan_of(mlp(), data, **settings)
    assert message in str(caught.value)


def test_text_for_one_output_of_several_classes() -> None:
    with pytest.raises(DataError, match=r"3 classes .* is one number\n.*new_head=3"):
        plan_of(mlp(classes=1), table())
    plan = plan_of(mlp(classes=1), table(), new_head=3)
    assert plan.classes == ("bird", "cat", "dog")


def test_whole_numbers_for_one_output_are_a_regression() -> None:
    plan = plan_of(mlp(classes=1), {"x": X, "age": np.arange(12)})
    assert plan.loss == MSE(output="scores", target="target")


@pytest.mark.parametrize("labels", [LABELS.astype(np.float32), LABELS[:, None]])
def test_labels_of_other_types_and_shapes_are_classes(labels: Any) -> None:
    plan = plan_of(mlp(), {"x": X, "label": labels})
    assert isinstance(plan.loss, CrossEntropy)
    feeds = next(plan.training.epoch(0)).feeds
    assert feeds["target"].dtype == np.int64 and feeds["target"].shape == (4,)
    train(plan)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
def test_one_hot_labels_are_classes(tmp_path: Path, dtype: Any) -> None:
    data = {"x": X, "y": np.eye(3)[LABELS].astype(dtype)}
    plan = plan_of(mlp(), data)
    assert plan.loss == CrossEntropy(output="scores", target="target")
    assert plan.classes == (0, 1, 2) and set(train(plan)) == {"loss", "accuracy", "f1"}
    batch = next(plan.training.epoch(0))
    assert batch.feeds["target"].tolist() == LABELS[batch.positions].tolist()
    path = export(plan, tmp_path / "model.onnx")
    assert isinstance(plan_of(path, {"x": X, "y": LABELS}, target="y").loss, CrossEntropy)
    assert plan_of(mlp(), data, loss="mse").loss == MSE(output="scores", target="target")
    assert isinstance(plan_of(mlp(), data, loss="bce_with_logits").loss, BCEWithLogits)


def test_rows_that_are_not_one_hot_are_no_classes() -> None:
    several = np.eye(3)[LABELS].astype(np.int64)
    several[5] = 1
    assert isinstance(plan_of(mlp(), {"x": X, "y": several}).loss, BCEWithLogits)
    shares = np.full((12, 3), 1 / 3)
    assert isinstance(plan_of(mlp(), {"x": X, "y": shares}).loss, MSE)
    one_hot = {"x": X, "y": np.eye(3)[LABELS]}
    with pytest.raises(DataError, match=r"row 5, column 'y': .* is not zeros and a single 1"):
        plan_of(mlp(), one_hot, {"x": X, "y": several.astype(float)})


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32])
def test_zeros_and_ones_for_each_output_are_binary(kind: Any) -> None:
    plan = plan_of(mlp(), {"x": X, "y": (X[:, :3] > 0).astype(kind)})
    assert isinstance(plan.loss, BCEWithLogits)
    assert next(plan.training.epoch(0)).feeds["target"].dtype == np.float32
    unet = new_model("unet", image=(3, 16, 16), classes=1)
    masks = np.random.default_rng(0).integers(0, 2, (6, 1, 16, 16)).astype(kind)
    plan = plan_of(unet, {"image": images(6, 3, 16, 16), "mask": masks})
    assert isinstance(plan.loss, BCEWithLogits) and plan.monitor == "val_accuracy"


def test_whole_numbers_beyond_one_for_each_output_are_a_regression() -> None:
    plan = plan_of(mlp(), {"x": X, "y": np.arange(36).reshape(12, 3)})
    assert isinstance(plan.loss, MSE)


def test_one_class_for_one_output_is_nothing_to_learn() -> None:
    with pytest.raises(DataError, match="every row has 'cat' in the target 'y': there is nothing"):
        plan_of(mlp(classes=1), {"x": X, "y": ["cat"] * 12})


def test_sigmoid_for_each_one_hot_label_stays_binary() -> None:
    op = onward.OpBuilder()
    w = op.initializer("w", np.ones((4, 3), np.float32))
    model = op.model(y=op.Sigmoid(op.MatMul(op.input("x", "float32", ("n", 4)), w)))
    labels = np.eye(3)[LABELS].astype(np.int64)
    assert isinstance(plan_of(model, {"x": X, "y": labels}).loss, BCEWithLogits)


@pytest.mark.parametrize("shape", [(12,), (12, 1)])
def test_floats_of_0_and_1_are_binary(shape: tuple[int, ...]) -> None:
    labels = (LABELS % 2).astype(np.float32).reshape(shape)
    plan = plan_of(mlp(classes=1), {"x": X, "y": labels})
    assert isinstance(plan.loss, BCEWithLogits) and plan.classes == (0, 1)
    assert set(train(plan)) == {"loss", "accuracy", "auc"}


def test_floats_that_are_classes_are_balanced() -> None:
    labels = np.where(np.arange(12) < 9, 0.0, LABELS)
    plan = plan_of(mlp(), {"x": X, "y": labels}, balance=True, validation_split=0)
    seen = np.concatenate([batch.feeds["target"] for batch in plan.training.epoch(0)])
    assert np.ptp(np.bincount(seen, minlength=3)) <= 1
    with pytest.raises(OptionError, match="balance needs a target of classes"):
        plan_of(mlp(classes=1), {"x": X, "y": X[:, 0]}, balance=True)


def test_plan_says_that_large_numbers_are_not_scaled() -> None:
    def why(target: Any) -> list[str]:
        choices = plan_of(mlp(classes=1), {"x": X, "y": target}, target="y").choices
        return [each.why for each in choices if each.what == "target scale"]

    [large] = why(1000 + 300 * X[:, 0])
    assert "it is not scaled" in large and large.startswith("mean ")
    assert len(why(0.01 * X[:, 0])) == 1 and why(X[:, 0]) == []


def test_positions_that_a_range_reads_are_counted(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    ids = op.input("input_ids", "int64", ("n", "t"))
    length = op.Squeeze(op.Shape(ids, start=1, end=2))
    places = op.Range(np.array(0), length, np.array(1))
    rows = op.Gather(
        op.initializer("places", np.ones((6, 9), np.float32)), op.Unsqueeze(places, [0])
    )
    logits = op.Add(op.Gather(op.initializer("words", np.eye(9, dtype=np.float32)), ids), rows)
    (tmp_path / "a.txt").write_text("a cat sat " * 9)
    plan = plan_of(op.model(logits=logits), tmp_path / "a.txt")
    assert reasons(plan)["block"] == "6 characters" and train(plan)["loss"] > 0


def test_column_of_two_labels_is_binary() -> None:
    plan = plan_of(mlp(classes=1), {"x": X, "label": LABELS[:, None] % 2 + 1})
    assert isinstance(plan.loss, BCEWithLogits) and plan.classes == (1, 2)
    train(plan)


def test_labels_from_1_are_counted_from_0(tmp_path: Path) -> None:
    plan = plan_of(mlp(), {"x": X, "label": LABELS + 1})
    assert plan.classes == (1, 2, 3) and reasons(plan)["classes"] == "1, 2, 3"
    assert set(next(plan.training.epoch(0)).feeds["target"].tolist()) <= {0, 1, 2}
    path = export(plan, tmp_path / "model.onnx")
    assert plan_of(path, {"x": X, "label": LABELS % 2 + 1}).classes == (1, 2, 3)


def test_held_out_rows_fill_a_fixed_batch() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (8, 4))
    model = op.model(y=op.MatMul(x, op.initializer("w", np.ones((4, 3), np.float32))))
    with pytest.raises(DataError, match=r"batch of 8 rows, which the 2 held-out .*\nhold out more"):
        plan_of(model, table())


def test_output_of_the_targets_name_is_trained() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 4))
    boxes, kind = (op.initializer(f"w{n}", np.ones((4, n), np.float32)) for n in (4, 3))
    plan = plan_of(op.model(boxes=op.MatMul(x, boxes), kind=op.MatMul(x, kind)), table())
    assert plan.output == "kind"


def test_dynamic_channels_last_input_of_channels_first_images() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", None, None, 3))
    means = op.ReduceMean(x, np.array([1, 2]), keepdims=0)
    model = op.model(y=op.MatMul(means, op.initializer("w", np.ones((3, 3), np.float32))))
    pixels = np.random.default_rng(0).normal(size=(12, 3, 5, 6)).astype(np.float32)
    plan = plan_of(model, {"image": pixels, "label": LABELS})
    assert next(plan.training.epoch(0)).feeds["x"].shape == (4, 5, 6, 3)


def test_output_that_may_be_the_loss() -> None:
    op = onward.OpBuilder()
    x, y = (op.input(name, "float32", ("n", 2)) for name in ("x", "y"))
    scores = op.MatMul(x, op.initializer("w", np.ones((2, 2), np.float32)))
    loss = op.ReduceMean(op.Abs(op.Sub(scores, y)), keepdims=0)
    model, data = op.model(scores=scores, loss=loss), {"x": X[:, :2], "y": X[:, 2:]}
    with pytest.raises(DataError, match=r"output 'loss' is one number\n.*loss='output'"):
        plan_of(model, data)
    assert plan_of(model, data, loss="output").output == "loss"


def test_output_that_is_the_loss() -> None:
    op = onward.OpBuilder()
    x, y = (op.input(name, "float32", ("n", size)) for name, size in (("x", 4), ("y", 1)))
    scores = op.MatMul(x, op.initializer("w", np.ones((4, 1), np.float32)))
    error = op.Sub(scores, y)
    model = op.model(cost=op.ReduceMean(op.Mul(error, error), keepdims=0))
    plan = plan_of(model, {"x": X, "y": X[:, 0]}, loss="output")
    assert set(next(plan.training.epoch(0)).feeds) == {"x", "y"}
    assert plan.make_metrics() == [] and plan.monitor == "val_loss"
    assert set(train(plan)) == {"loss"}


def test_tables_and_folders_of_splits(tmp_path: Path) -> None:
    data = table()
    lines = [",".join([*(str(data[n][i]) for n in "abcd"), data["kind"][i]]) for i in range(20)]
    for name, some in (("train", lines[:15]), ("val", lines[15:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,d,kind", *some]))
    plan = plan_of(mlp(), tmp_path)
    assert plan.sizes == {"training rows": 15, "validation rows": 5}
    assert reasons(plan)["target"] == "kind"


def features_model() -> Any:
    """Features by token and their normalised mean, as sentence encoders give them."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 3, 4))
    tokens = op.Tanh(op.MatMul(x, op.initializer("w", np.ones((4, 5), np.float32))))
    pooled = op.ReduceMean(tokens, np.array([1]), keepdims=0)
    return op.model(tokens=tokens, pooled=op.LpNormalization(pooled, axis=1, p=2))


def test_given_output_is_trained_with_a_new_head_behind_it() -> None:
    data = {"x": np.zeros((20, 3, 4), np.float32), "kind": ["a", "b"] * 10}
    plan = plan_of(features_model(), data, output="pooled", new_head=2)
    assert plan.output == "scores" and plan.classes == ("a", "b")
    assert plan.adapted.notes == ("new head: 2 outputs behind 'pooled' (head.weight, head.bias)",)
    with pytest.raises(OptionError, match=r"no output 'poled'.*\n.*'pooled'"):
        plan_of(features_model(), data, output="poled", new_head=2)


def test_metrics_need_rows_to_measure_them_on() -> None:
    with pytest.raises(OptionError, match=r"none are held out\n.*--validation-split"):
        plan_of(mlp(), table(), validation_split=0, metrics=["f1"])


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_columns_that_cannot_be_read_are_left_out(tmp_path: Path, suffix: str) -> None:
    rows = [dict(zip(table(), row)) | {"meta": {"page": 1}} for row in zip(*table().values())]
    paths = [tmp_path / f"{number}{suffix}" for number in range(2)]
    for path in paths:
        if suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            pa = pytest.importorskip("pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    plan = plan_of(mlp(), paths, target="kind")
    assert reasons(plan)["left out"] == "meta" and train(plan)["loss"] > 0
    assert "left out" not in reasons(plan_of(mlp(), paths, target="kind", ignore_columns=["meta"]))
    for settings in ({"target": "meta"}, {"target": "kind", "inputs": {"x": ["a", "meta"]}}):
        with pytest.raises(DataError, match=r"column 'meta' (has|is of Arrow's type struct)"):
            plan_of(mlp(), paths, **settings)


def test_an_infinite_number_is_refused() -> None:
    data = table()
    data["b"][7] = np.inf
    with pytest.raises(DataError, match="row 7, column 'b' has inf, which is no number"):
        plan_of(mlp(), data, target="kind", validation_split=0)


def test_two_arrays_that_fit_an_input_are_not_guessed_between() -> None:
    data = table()
    data |= {"first": np.ones((20, 4)), "second": np.zeros((20, 4))}
    with pytest.raises(DataError, match=r"which column feeds .* left are 'first' .*, 'second'"):
        plan_of(mlp(), data, target="kind")
    plan = plan_of(mlp(), data, target="kind", inputs={"x": ["second"]})
    assert plan.preprocessing.inputs[0].columns == ("second",)


def test_metrics_of_classes_are_refused_for_numbers() -> None:
    data = {**table(), "price": np.linspace(0, 9, 20)}
    still = {"target": "price", "ignore_columns": ["kind"]}
    with pytest.raises(OptionError, match=r"'accuracy' does not fit targets of mse: .*\n.*'mae'"):
        plan_of(mlp(classes=1), data, metrics=["accuracy"], **still)
    assert plan_of(mlp(classes=1), data, metrics=["mae", "r2"], **still).monitor == "val_mae"
