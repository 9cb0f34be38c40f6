"""Feeds from columns, as JSON and back, stored with a model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onward.errors import ColumnMissing, DataError
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.class_labels import ClassLabels, OneHotColumn
from onward.runner.data.image_pixels import ImagePixels
from onward.runner.data.number_scaling import FillMissing, Standardize
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.preprocessing import Preprocessing, read_preprocessing, store
from tests.runner.plan.planned_runs import mlp

SOURCE = FeedSource(
    "x",
    ("age", "kind"),
    {
        "age": (FillMissing("age", 0.1 + 0.2), Standardize("age", (1 / 3,), (0.7,))),
        "kind": (OneHotColumn("kind", ("cat", "dog")),),
    },
    "float32",
    (None, 3),
)
TARGET = FeedSource(
    "target", ("label",), {"label": (ClassLabels("label", ("no", "yes")),)}, "int64", (None,)
)


def test_columns_are_encoded_and_joined() -> None:
    preprocessing = Preprocessing((SOURCE,), TARGET, "y", ("no", "yes"))
    columns = {
        "age": np.array([np.nan, 1.0]),
        "kind": np.array(["dog", "cat"], object),
        "label": np.array(["yes", "no"], object),
    }
    feeds = preprocessing.feeds(columns)
    assert feeds["x"].dtype == np.float32 and feeds["x"][:, 1:].tolist() == [[0, 1], [1, 0]]
    assert feeds["x"][0, 0] == pytest.approx((0.3 - 1 / 3) / 0.7)
    assert feeds["target"].tolist() == [1, 0]
    assert preprocessing.needed_columns() == ["age", "kind", "label"]
    del columns["label"]
    assert list(preprocessing.feeds(columns, target=False)) == ["x"]
    with pytest.raises(ColumnMissing, match=r"the data has no column 'label'\n"):
        preprocessing.feeds(columns)


def test_json_is_exact_and_stored_with_a_model() -> None:
    preprocessing = Preprocessing(
        (SOURCE,), TARGET, "y", ("no", "yes"), CharacterVocabulary("ab\n\U0001f600"), True
    )
    assert Preprocessing.from_json(preprocessing.to_json()) == preprocessing
    model = mlp()
    assert read_preprocessing(model) is None
    store(model, preprocessing)
    assert read_preprocessing(model) == preprocessing


def test_damaged_or_newer_records_are_refused() -> None:
    record = json.loads(Preprocessing((SOURCE,)).to_json())
    with pytest.raises(DataError, match=r"of version 2, this release reads version 1\n"):
        Preprocessing.from_json(json.dumps({**record, "version": 2}))
    with pytest.raises(DataError, match=r"preprocessing is damaged: KeyError"):
        Preprocessing.from_json('{"version": 1}')
    with pytest.raises(DataError, match="preprocessing is damaged"):
        Preprocessing.from_json("[")


@pytest.mark.parametrize(
    ("given", "shape", "wanted"),
    [
        ((5,), (None,), (5,)),
        ((5,), (None, 1), (5, 1)),
        ((5, 1), (None,), (5,)),
        ((5, 6, 6), (None, 1, 6, 6), (5, 1, 6, 6)),
        ((5, 6, 6), (None, 1, None, None), (5, 1, 6, 6)),
        ((5, 6, 6), (None, None, None, 1), (5, 6, 6, 1)),
        ((5, 12), (None, 3, 2, 2), (5, 3, 2, 2)),
        ((0, 12), (None, 3, 2, 2), (0, 3, 2, 2)),
    ],
)
def test_shapes(
    given: tuple[int, ...], shape: tuple[int | None, ...], wanted: tuple[int, ...]
) -> None:
    source = FeedSource("x", ("a",), {}, "float16", shape)
    made = source.make({"a": np.zeros(given)})
    assert made.shape == wanted and made.dtype == np.float16


def test_shapes_that_do_not_fit_are_refused() -> None:
    source = FeedSource("x", ("a",), {}, "float32", (None, 4))
    with pytest.raises(DataError, match=r"column 'a' has the shape \(3\) in a row, .* takes \(4\)"):
        source.make({"a": np.zeros((2, 3))})


def test_whole_numbers_and_texts_are_checked() -> None:
    tokens = FeedSource("tokens", ("a",), {}, "int32", (None, None))
    made = tokens.make({"a": np.array([[1.0, 2.0]])})
    assert made.dtype == np.int32 and made.tolist() == [[1, 2]]
    with pytest.raises(DataError, match=r"row 7, column 'a' has 0.5, which is not a whole number"):
        tokens.make({"a": np.array([[0.0], [0.5]])}, np.array([3, 7]))
    with pytest.raises(DataError, match=r"row 0, column 'a': a text \('hi'\) cannot be fed"):
        tokens.make({"a": np.array(["hi"], object)})
    rows = np.empty(2, object)
    rows[:] = [np.array([1]), np.array([2, 3])]
    assert tokens.make({"a": rows}).tolist() == [[1, 0], [2, 3]]
    fixed = FeedSource("tokens", ("a",), {}, "int64", (None, 1))
    with pytest.raises(DataError, match=r"row 1, column 'a' has 2 values, .* takes 1\n"):
        fixed.make({"a": rows})


def test_images_are_resized_into_the_layout_of_the_input() -> None:
    encoders = {"image": (ImagePixels("image", (2, 3)),)}
    source = FeedSource("x", ("image",), encoders, "float32", (None, 2, 3, 1), (0, 2, 3, 1))
    made = source.make({"image": np.full((1, 1, 4, 4), 255, np.uint8)})
    assert made.shape == (1, 2, 3, 1) and (made == 1).all()


def test_answers_are_named() -> None:
    classes = Preprocessing((SOURCE,), TARGET, "y", ("no", "yes"))
    assert classes.decode({"y": np.array([[2.0, 1.0, 9.0]])}) == ["no"]  # the third is unused
    assert classes.decode({"y": np.array([-0.1, 0.1])}) == ["no", "yes"]
    assert classes.decode({"z": np.zeros((1, 2))}) == []
    text = Preprocessing((SOURCE,), output="y", vocabulary=CharacterVocabulary("ab"))
    assert text.decode({"y": np.array([[[0.0, 1.0], [1.0, 0.0]]])}) == ["ba"]
    columns = {"text": np.array(["ab"], object)}
    source = FeedSource("tokens", ("tokens",), {}, "int64", (None, None))
    tokens = Preprocessing((source,), vocabulary=CharacterVocabulary("ab"))
    assert tokens.feeds(columns)["tokens"].tolist() == [[0, 1]]
