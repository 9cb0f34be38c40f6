"""Encoders: what they learn, apply, and store; values that they do not know."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import ColumnMissing, DataError, OptionError
from onward.runner.data import dataset as datasets
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.class_labels import (
    ClassLabels,
    OneHotColumn,
    OneHotLabels,
    check_label_range,
)
from onward.runner.data.encode import ENCODERS, encode_column, encoder_from_json
from onward.runner.data.image_pixels import ImagePixels
from onward.runner.data.in_memory import ArrayDataset, from_rows
from onward.runner.data.number_scaling import FillMissing, Standardize

NAN = np.nan
DATA = ArrayDataset(
    {
        "kind": ["dog", "cat", "", "cat"],
        "code": np.array([70, -3, 70, 5]),
        "x": np.array([1.0, 2.0, NAN, 6.0]),
        "v": np.array([[1, 5], [2, 5], [3, 5], [6, 5]]),
        "image": np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2),
        "yes": np.array([True, False, True, True]),
    }
)
FITTED: dict[str, Any] = {
    "ClassLabels": ClassLabels.fit(DATA, "code"),
    "OneHotColumn": OneHotColumn.fit(DATA, "kind"),
    "OneHotLabels": OneHotLabels("kind"),
    "Standardize": Standardize.fit(DATA, "v"),
    "FillMissing": FillMissing.fit(DATA, "x"),
    "ImagePixels": ImagePixels.fit(DATA, "image"),
    "CharacterVocabulary": CharacterVocabulary.fit(DATA, "kind"),
}


def test_labels_become_their_places_in_sorted_order() -> None:
    labels = FITTED["ClassLabels"]
    assert labels.classes == (-3, 5, 70)
    assert labels.apply(np.array([70, 5])).tolist() == [2, 1]
    assert labels.decode(np.array([0, 2])) == [-3, 70]
    assert ClassLabels.fit(DATA, "kind", np.array([0, 1])).classes == ("cat", "dog")
    assert ClassLabels.fit(DATA, "yes").apply(np.array([True, False])).tolist() == [1, 0]


def test_one_hot_has_a_column_for_each_category() -> None:
    encoded = FITTED["OneHotColumn"].apply(np.array(["dog", ""], object))
    assert encoded.dtype == np.float32 and encoded.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_one_hot_labels_become_places() -> None:
    labels = FITTED["OneHotLabels"]
    assert labels.apply(np.array([[0, 0, 1], [1, 0, 0]])).tolist() == [2, 0]
    for row in ([0, 0, 0], [1, 1, 0], [0.5, 0.5, 0]):
        with pytest.raises(DataError, match=r"row 9, column 'kind': .* is not zeros and a single"):
            labels.apply(np.array([[0, 1, 0], row]), np.array([7, 9]))


@pytest.mark.parametrize("kind", [ClassLabels, OneHotColumn])
def test_an_unknown_category_is_named_with_its_column_and_row(kind: Any) -> None:
    encoder = kind("kind", ("cat", "dog"))
    with pytest.raises(DataError, match=r"row 41, column 'kind': 'dgo' is not one of .*\n.*'dog"):
        encoder.apply(np.array(["cat", "dgo"], object), np.array([7, 41]))
    with pytest.raises(DataError, match=r"row 1, column 'kind': 9 is not .*\n.* had 'cat', 'dog'"):
        encoder.apply(np.array(["cat", 9], object))


def test_categories_are_not_numbers_with_gaps_or_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="row 2, column 'x' has no value, which cannot be a categ"):
        ClassLabels.fit(DATA, "x")
    with pytest.raises(DataError, match="column 'v' has arrays, not categories"):
        OneHotColumn.fit(DATA, "v")
    with pytest.raises(ColumnMissing, match=r"no column 'knid'\ndid you mean 'kind'"):
        OneHotColumn.fit(DATA, "knid")
    monkeypatch.setattr("onward.runner.data.class_labels._MOST", 2)
    with pytest.raises(DataError, match="'kind' has more than 2 different values, too many"):
        OneHotColumn.fit(DATA, "kind")


def test_labels_out_of_range_are_named_with_their_row() -> None:
    check_label_range(np.array([0, 9]), 10, "label")
    with pytest.raises(
        DataError,
        match=r"label 12 in row 5, column 'label', is out of range: .* 10 classes, 0",
    ):
        check_label_range(np.array([3, 12]), 10, "label", np.array([4, 5]))
    with pytest.raises(DataError, match="label -1 in row 0"):
        check_label_range(np.array([-1]), 10, "label")
    with pytest.raises(DataError, match="labels of the type float64, not whole numbers"):
        check_label_range(np.array([0.5]), 10, "label")


def test_standardised_numbers_have_mean_0_and_std_1() -> None:
    scaling = FITTED["Standardize"]
    scaled = scaling.apply(DATA.read(range(4))["v"])
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(0), [1, 0], atol=1e-6)  # a constant stays a constant
    np.testing.assert_allclose(scaling.invert(scaled), DATA.read(range(4))["v"], rtol=1e-6)
    assert Standardize.fit(DATA, "x").mean == (3.0,)  # NaN left out


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50), st.floats(0, 1e9))
@settings(max_examples=50, deadline=None)
def test_chunks_give_numpys_mean_and_std(values: list[float], offset: float) -> None:
    numbers = np.array(values) + offset
    data = ArrayDataset({"x": numbers})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "onward.runner.data.number_scaling.read_chunks",
            lambda *given: datasets.read_chunks(*given, rows=3),
        )
        scaling = Standardize.fit(data, "x")
    np.testing.assert_allclose(scaling.mean, [numbers.mean()], rtol=1e-9, atol=1e-9)
    if numbers.std() > max(1e-6 * abs(numbers).max(), 1e-20):  # else it is a constant
        np.testing.assert_allclose(scaling.std, [numbers.std()], rtol=1e-6)


def test_missing_values_are_filled() -> None:
    assert FITTED["FillMissing"].apply(np.array([NAN, 1.0])).tolist() == [3, 1]
    fill = FillMissing.fit(DATA, "kind")
    assert fill.value == "cat" and fill.apply(np.array(["", "x"], object)).tolist() == ["cat", "x"]
    both = [FillMissing.fit(DATA, "x"), Standardize("x", (3.0,), (2.0,))]
    assert encode_column(both, np.array([NAN, 5.0])).tolist() == [0, 1]
    nothing = ArrayDataset({"x": np.full(3, NAN), "t": ["", "", ""]})
    for column in ("x", "t"):
        with pytest.raises(DataError, match=f"column '{column}' has no values at all"):
            FillMissing.fit(nothing, column)


def test_texts_are_not_numbers() -> None:
    with pytest.raises(DataError, match=r"'kind' does not have numbers .*: row 0 has .*\n.*OneHot"):
        Standardize.fit(DATA, "kind")
    with pytest.raises(DataError, match="has 3 numbers in a row, but was standardised with 2"):
        FITTED["Standardize"].apply(np.zeros((1, 3)))


def test_pixels_are_normalised_by_channel() -> None:
    pixels = FITTED["ImagePixels"].apply(DATA.read(range(4))["image"])
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(pixels.std((0, 2, 3)), 1, rtol=1e-5)


def test_images_of_any_size_become_one_batch() -> None:
    pytest.importorskip("PIL", reason="PIL is not installed")
    images = from_rows([{"i": np.full((3, n, n + 1), 51, np.uint8)} for n in (2, 3)])
    pixels = ImagePixels.fit(images, "i", size=(4, 5)).apply(images.read([0, 1])["i"])
    assert pixels.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(ImagePixels("i", (4, 5)).apply(images.read([0, 1])["i"]), 0.2)


def test_wrong_images_are_refused() -> None:
    images = from_rows([{"i": np.zeros((3, n, 2), np.uint8)} for n in (2, 3)]).read([0, 1])["i"]
    with pytest.raises(DataError, match=r"row 9, .*: the image is 3 x 3 x 2, .* 3 x 2 x 2\ngive"):
        ImagePixels("i", None).apply(images, np.array([8, 9]))
    with pytest.raises(DataError, match=r"row 0, column 'i': float64 of shape \(2, 2\) is not an"):
        ImagePixels("i", None).apply(np.zeros((1, 2, 2)))
    with pytest.raises(DataError, match="images of 3 channels, but the mean has 2 numbers"):
        ImagePixels("i", None, (0.0, 0.0), (1.0, 1.0)).apply(np.zeros((1, 3, 2, 2), np.uint8))
    with pytest.raises(OptionError, match=r"ImagePixels.std must be above 0"):
        ImagePixels("i", None, std=(0.0,))


def test_characters_are_encoded_and_decoded() -> None:
    vocabulary = FITTED["CharacterVocabulary"]
    assert vocabulary.characters == "acdgot"
    encoded = vocabulary.apply(np.array(["cat", "dog"], object))
    assert [vocabulary.decode(row) for row in encoded] == ["cat", "dog"]
    with pytest.raises(DataError, match="row 3 has 'x' as character 1, which the vocabulary of 6"):
        vocabulary.apply(np.array(["ax"], object), np.array([3]))
    with pytest.raises(DataError, match="'x' as character 0"):
        CharacterVocabulary("").encode("x")


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_survive_json(name: str) -> None:
    record = json.loads(json.dumps(FITTED[name].to_json()))
    assert encoder_from_json(record) == FITTED[name]


def test_wrong_records_are_refused() -> None:
    with pytest.raises(DataError, match=r"'Standardise' is not a .*\ndid you mean 'Standardize'"):
        encoder_from_json({"kind": "Standardise"})
    with pytest.raises(DataError, match="the record of a ClassLabels is damaged: KeyError"):
        encoder_from_json({"kind": "ClassLabels", "column": "x"})
