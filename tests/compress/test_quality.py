"""Judge: similarity, error, agreement and metrics of a changed model against the original."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quality import Judge, Quality, rate_outputs
from onward.errors import DataError, MetricError, OptionError
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 3)).astype(np.float32)
X = RNG.normal(size=(64, 4)).astype(np.float32)
BF16 = ml_dtypes.bfloat16
LABELS = (X @ W).argmax(1)


def product(w: np.ndarray[Any, Any]) -> ir.Model:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    return op.model(y=op.MatMul(x, op.initializer("w", w.astype(np.float32))))


def judge(**settings: Any) -> Judge:
    inputs = InferenceSession(product(W)).get_inputs()
    data = Calibration({"x": X, "label": LABELS}, inputs, target="label")
    return Judge(product(W), data, **settings)


def test_the_original_is_perfect() -> None:
    quality = judge(metric="accuracy").original
    assert quality == Quality(similarity=1.0, error=0.0, agreement=1.0, metric=1.0)


def test_a_model_that_takes_no_random_rows_asks_for_sizes() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(y=op.Reshape(x, np.array([-1, 3, 4])))  # a multiple of three rows
    inputs = InferenceSession(model).get_inputs()
    with pytest.raises(DataError, match=r"random numbers \(x: 1, 4\).*\n.*--size"):
        Judge(model, Calibration(None, inputs))
    assert Judge(model, Calibration(None, inputs, sizes={"batch": 6})).original.error == 0


def test_a_change_is_measured() -> None:
    quality = judge().rate(product(1.1 * W))
    assert quality.similarity == pytest.approx(1) and quality.agreement == 1
    assert quality.error == pytest.approx(0.1, rel=1e-3)
    opposite = judge().rate(product(-W))
    assert opposite.similarity == pytest.approx(-1) and opposite.error == pytest.approx(2, rel=1e-3)


def probability(w: np.ndarray[Any, Any], offset: float = 0.0) -> ir.Model:
    """One number for each row, which is always positive."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    p = op.Sigmoid(op.MatMul(x, op.initializer("w", w.astype(np.float32))))
    return op.model(p=op.Add(p, np.array(offset, np.float32)))


@pytest.mark.parametrize("batch", [None, 1])
def test_single_numbers_are_compared_over_all_rows(batch: int | None) -> None:
    inputs = InferenceSession(probability(W[:, :1])).get_inputs()
    rating = Judge(probability(W[:, :1]), Calibration({"x": X}, inputs, batch=batch))
    assert rating.rate(probability(W[:, :1])).similarity == pytest.approx(1)

    other = rating.rate(probability(W[:, 1:2]))
    p, q = (1 / (1 + np.exp(-X.astype(np.float64) @ W[:, i])) for i in (0, 1))
    a, b = p - p.mean(), q - p.mean()
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert other.similarity == pytest.approx(expected, abs=1e-5)
    assert not rating.is_within(other, drop=0.1)
    assert rating.rate(probability(W[:, :1], offset=0.5)).similarity < 0.8
    assert rating.rate(probability(np.zeros((4, 1)))).similarity < 0.5  # answers 0.5 to all


def test_one_row_of_one_number_is_compared_by_its_error() -> None:
    inputs = InferenceSession(probability(W[:, :1])).get_inputs()
    rating = Judge(probability(W[:, :1]), Calibration({"x": X[:1]}, inputs))
    quality = rating.rate(probability(W[:, :1], offset=0.1))
    assert quality.similarity == pytest.approx(1 - quality.error) and quality.error > 0.05


def test_not_a_number_is_never_within_a_budget() -> None:
    rating = judge()
    assert not rating.is_within(rating.rate(product(W * np.nan)), drop=0.99)


@pytest.mark.parametrize("odd", [0, 1])
def test_not_a_number_in_one_of_two_outputs_is_never_within_a_budget(odd: int) -> None:
    def two(first: float, second: float) -> ir.Model:
        op = OpBuilder()
        x = op.input("x", "float32", ("batch", 4))
        a, b = (
            op.initializer("a", W * np.float32(first)),
            op.initializer("b", W * np.float32(second)),
        )
        return op.model(y=op.MatMul(x, a), z=op.MatMul(x, b))

    original = two(1, 1)
    data = Calibration({"x": X}, InferenceSession(original).get_inputs())
    rating = Judge(original, data)
    quality = rating.rate(two(*([np.nan, 1] if odd == 0 else [1, np.nan])))
    assert np.isnan(quality.similarity) and np.isnan(quality.error)
    assert not rating.is_within(quality, drop=0.99)


def test_outputs_of_another_shape_are_not_alike() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    quality = judge().rate(op.model(y=op.ReduceMax(x, np.array([1]), keepdims=1)))
    assert quality.similarity == 0 and quality.error == 1


def labels(w: np.ndarray[Any, Any], kind: str) -> ir.Model:
    """The class of each row, as a number or as a text."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    y = op.ArgMax(op.MatMul(x, op.initializer("w", w.astype(np.float32))), axis=1, keepdims=0)
    if kind == "text":
        y = op.Gather(np.array(["cat", "dog", "cow"]), y)
    elif kind == "flags":
        y = op.Equal(y, np.array(1))
    return op.model(y=y)


@pytest.mark.parametrize("kind", ["number", "text", "flags"])
def test_labels_are_equal_or_not(kind: str) -> None:
    data = Calibration({"x": X}, InferenceSession(labels(W, kind)).get_inputs(), batch=10)
    rating = Judge(labels(W, kind), data)
    assert rating.original == Quality(similarity=1.0, error=0.0, agreement=1.0)
    other = W + 0.5 * RNG.normal(size=W.shape)
    y, z = LABELS, (X @ other.astype(np.float32)).argmax(1)
    share = float(((y == z) if kind != "flags" else ((y == 1) == (z == 1))).mean())
    assert 0.5 < share < 0.99
    quality = rating.rate(labels(other, kind))
    assert quality.similarity == quality.agreement == pytest.approx(share)
    assert quality.error == pytest.approx(1 - share)
    assert not rating.is_within(quality, drop=0.01)


@pytest.mark.parametrize(
    ("y", "z", "expected"),
    [
        (np.array([7, 3]), np.array([7, 9]), 0.5),
        (np.array([7, 3]), np.array([7]), 0),  # another number of found boxes
        (np.zeros(0, np.int64), np.array([7]), 0),
        (np.zeros((0, 4), np.float32), np.ones((1, 4), np.float32), 0),
        (np.array([200], np.uint8), np.array([199], np.uint8), 1),  # of an image: a number
        (np.ones((1, 3), BF16), -np.ones((1, 3), BF16), -1),
        (None, None, 1),
        (None, np.ones(3, np.float32), 0),
        ([np.ones(2), np.ones(3)], [np.ones(2), np.ones(3)], 1),  # a sequence
        ([np.ones(2), np.ones(3)], [np.ones(2), -np.ones(3)], -0.2),
    ],
)
def test_outputs_of_every_kind_are_compared(y: Any, z: Any, expected: float) -> None:
    assert rate_outputs([([y], [z])]).similarity == pytest.approx(expected, abs=1e-3)


def test_the_scores_of_a_map_are_a_table() -> None:
    """As scikit-learn's classifiers give them with ZipMap."""
    y = [{"cat": 0.9, "dog": 0.1}, {"cat": 0.2, "dog": 0.8}]
    z = [{"cat": 0.9, "dog": 0.1}, {"cat": 0.7, "dog": 0.3}]
    quality = rate_outputs([([y], [z])])
    assert quality.agreement == 0.5 and 0.5 < quality.similarity < 0.9


def test_a_budget_is_a_share_of_the_metric() -> None:
    rating = judge(metric=lambda run: 50.0, providers=["CPUExecutionProvider"])
    assert rating.original.metric == 50 and rating.metric_name == "<lambda>"
    worse = Quality(similarity=0.2, error=1.0, metric=49.5)
    assert rating.is_within(worse, drop=0.01) and not rating.is_within(worse, drop=0.009)


def test_without_a_metric_the_budget_is_of_similarity() -> None:
    close = Quality(similarity=0.995, error=0.1)
    assert judge().is_within(close, drop=0.01) and not judge().is_within(close, drop=0.001)


def test_an_own_metric_runs_the_model() -> None:
    def score(run: Any) -> float:
        return float((run({"x": X})["y"].argmax(1) == LABELS).mean())

    rating = judge(metric=score)
    assert rating.original.metric == 1 and rating.rate(product(-W)).metric == 0


def raising(run: Any) -> float:
    raise ZeroDivisionError("no rows")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (raising, "the metric raised ZeroDivisionError: no rows"),
        (lambda run: float("nan"), "the metric returned nan"),
        (lambda run: "text", "the metric returned a str, not a number\nreturn what"),
        (lambda run: [1.0, 2.0], "the metric returned a list, not a number"),
    ],
)
def test_a_metric_that_fails_is_one_clear_error(metric: Any, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        judge(metric=metric)


class OwnAccuracy:
    """A metric of a user's own, by its methods or as a function."""

    def __call__(self, run: Any) -> float:
        return 0.5


def test_a_metric_must_be_a_name_an_object_or_a_function() -> None:
    with pytest.raises(
        OptionError, match=r"the class OwnAccuracy, not an object.*\n.*Accuracy\(\)"
    ):
        judge(metric=OwnAccuracy)
    with pytest.raises(OptionError, match="the metric is of type int\ngive a name"):
        judge(metric=3)
    assert judge(metric=OwnAccuracy()).metric_name == "OwnAccuracy"


def test_a_metric_of_outputs_and_targets_is_refused_before_the_model_runs() -> None:
    def share(outputs: Any, targets: Any) -> float:
        raise AssertionError

    with pytest.raises(
        OptionError, match=r"metric share\(outputs.* must take one argument\nit gets a function"
    ):
        judge(metric=share)
    with pytest.raises(OptionError, match=r"metric <lambda>\(\) must take one argument"):
        judge(metric=lambda: 1.0)
    assert judge(metric=lambda run, k=5: float(k)).original.metric == 5


def test_a_metric_needs_targets() -> None:
    inputs = InferenceSession(product(W)).get_inputs()
    with pytest.raises(OptionError, match=r"the data has none\ngive target="):
        Judge(product(W), Calibration({"x": X}, inputs), metric="accuracy")
    with pytest.raises(OptionError, match="the data has none"):
        Judge(product(W), Calibration(None, inputs, target="label"), metric="accuracy")
    with pytest.raises(OptionError, match="no metric 'acuracy'"):
        judge(metric="acuracy")
