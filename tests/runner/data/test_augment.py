"""Augmentation: what each change does, and that it is a function of (seed, epoch, position)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.errors import DataError, OptionError
from onward.runner.data.augment import Augmentation, colour, crop, flip, mixup
from onward.runner.data.batches import Batches
from onward.runner.data.in_memory import ArrayDataset

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (40, 3, 5, 6), np.uint8)
LABELS = rng.integers(0, 4, 40)
ROWS = np.arange(100, 140)

ALL = Augmentation(
    flip=True, crop=2, brightness=0.3, contrast=0.2, saturation=0.4, mixup=0.4, classes=4, seed=3
)


def test_half_of_the_images_are_mirrored() -> None:
    flipped = flip(IMAGES, 0, 0, ROWS)
    mirrored = [np.array_equal(a, b[..., ::-1]) for a, b in zip(flipped, IMAGES)]
    same = [np.array_equal(a, b) for a, b in zip(flipped, IMAGES)]
    assert sum(mirrored) + sum(same) == 40 and 10 < sum(mirrored) < 30


def test_crops_are_shifted_images_on_zeros() -> None:
    point = np.zeros((400, 1, 7, 7), np.float32)
    point[:, 0, 3, 3] = 1
    _, _, rows, columns = np.nonzero(crop(point, 2, 0, 0, np.arange(400)))
    assert set(zip(rows.tolist(), columns.tolist())) == {
        (r, c) for r in range(1, 6) for c in range(1, 6)
    }


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_colours_change_within_their_strength(dtype: Any) -> None:
    images = np.full((50, 3, 2, 2), 100, dtype)
    brighter = colour(images, 0, 0, np.arange(50), brightness=0.5)
    assert brighter.dtype == dtype and brighter.min() >= 50 and brighter.max() <= 150
    assert np.ptp(brighter.reshape(50, -1), axis=1).max() == 0 < np.ptp(brighter)
    same = colour(images, 0, 0, np.arange(50), contrast=0.5, saturation=0.5)
    np.testing.assert_allclose(same, images, rtol=1e-5)  # grey has neither


def test_contrast_and_saturation_follow_their_formulas() -> None:
    images = IMAGES.astype(np.float32)
    contrasted = colour(images, 0, 0, ROWS, contrast=0.5)
    mean = images.mean((1, 2, 3), keepdims=True)
    factors = (contrasted - mean) / (images - mean)
    np.testing.assert_allclose(contrasted.mean((1, 2, 3)), mean.ravel(), rtol=1e-5)
    assert np.ptp(np.median(factors.reshape(40, -1), 1)) > 0.5
    saturated = colour(images, 0, 0, ROWS, saturation=1.0)
    grey = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(
        np.einsum("nchw,c->nhw", saturated, grey), np.einsum("nchw,c->nhw", images, grey), rtol=1e-4
    )
    one = colour(images[:, :1], 0, 0, ROWS, saturation=1.0)
    np.testing.assert_array_equal(one, images[:, :1])


def test_bytes_stay_in_their_range() -> None:
    changed = colour(IMAGES, 0, 0, ROWS, brightness=1.0, contrast=1.0)
    assert changed.dtype == np.uint8 and changed.max() == 255


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 4.0])
def test_mixup_mixes_images_and_weights_alike(alpha: float) -> None:
    ones = np.eye(40, dtype=np.float32).reshape(40, 40, 1, 1)
    mixed, weights = mixup(ones, np.arange(40), 40, alpha, 0, 0, ROWS)
    np.testing.assert_array_equal(mixed[..., 0, 0], weights)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert ((weights > 0).sum(1) <= 2).all()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_the_shares_of_mixup_are_beta_distributed(alpha: float) -> None:
    rows = np.arange(4000)
    images = np.zeros((4000, 1, 1, 1), np.float32)
    labels = np.zeros(4000, int)
    labels[::2] = 1
    _, weights = mixup(images, labels, 2, alpha, 0, 0, rows)
    share = weights[rows, labels]
    share = share[share < 1]  # of rows whose partner has the other label
    assert abs(share.mean() - 0.5) < 0.03
    assert abs(share.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_mixup_refuses_labels_that_are_not_classes() -> None:
    with pytest.raises(DataError, match=r"label 9 in row 102 is out of range: there are 4 classes"):
        mixup(IMAGES[:3], np.array([0, 1, 9]), 4, 0.2, 0, 0, ROWS[:3])
    with pytest.raises(DataError, match="mixup needs one class for each row, not float32"):
        mixup(IMAGES[:3], np.zeros((3, 2), np.float32), 4, 0.2, 0, 0, ROWS[:3])


def test_the_same_row_is_changed_alike_in_any_batch() -> None:
    alone = Augmentation(flip=True, crop=2, brightness=0.3, contrast=0.2, saturation=0.4)
    whole = alone({"image": IMAGES}, 5, ROWS)["image"]
    part = alone({"image": IMAGES[7:9]}, 5, ROWS[7:9])["image"]
    np.testing.assert_array_equal(part, whole[7:9])
    other = alone({"image": IMAGES}, 6, ROWS)["image"]
    assert not np.array_equal(other, whole)


def test_a_resumed_epoch_is_bit_identical() -> None:
    data = ArrayDataset({"image": IMAGES, "label": LABELS})
    whole = list(Batches(data, 7, transform=ALL, threads=2).epoch(2))
    again = list(Batches(data, 7, transform=ALL, threads=0).epoch(2, start=3))
    for one, other in zip(whole[3:], again, strict=True):
        for name in ("image", "label"):
            assert one.feeds[name].tobytes() == other.feeds[name].tobytes()
    assert whole[0].feeds["label"].shape == (7, 4) and whole[0].feeds["image"].dtype == np.float32


def test_images_are_not_changed_in_place() -> None:
    before = IMAGES.copy()
    ALL({"image": IMAGES, "label": LABELS}, 0, ROWS)
    np.testing.assert_array_equal(IMAGES, before)


def test_wrong_settings_and_images_are_refused() -> None:
    with pytest.raises(OptionError, match="brightness must be a number from 0 to 1"):
        Augmentation(brightness=2)
    with pytest.raises(OptionError, match="classes must be a whole number, at least 2"):
        Augmentation(mixup=0.2)
    with pytest.raises(DataError, match=r"'image' cannot be augmented: .*\n.*image_size"):
        ALL({"image": np.empty(3, object)}, 0, ROWS[:3])
