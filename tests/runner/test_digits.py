"""The demo's data and its network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import onward
from onward.runner.digits import TRAIN, batches, build_network, load_digits, shift, write_digits


def test_data_are_images_and_labels() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8) and images.dtype == np.float32
    assert 0 <= images.min() < images.max() <= 1
    assert sorted(set(labels.tolist())) == list(range(10))


def test_network_computes_scores_and_probabilities() -> None:
    images, _ = load_digits()
    scores, probabilities = onward.InferenceSession(build_network()).run(None, {"image": images})
    assert scores.shape == probabilities.shape == (1797, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)


def test_seed_determines_the_network() -> None:
    def weight(seed: int) -> list[float]:
        value = build_network(seed).graph.initializers["conv2.weight"].const_value
        assert value is not None
        return value.numpy().ravel().tolist()

    assert weight(1) == weight(1) != weight(2)


def test_batches_have_every_image_once_with_its_label() -> None:
    images = np.zeros((10, 1, 8, 8), np.float32)
    images[:, 0, 4, 4] = np.arange(10)  # a point in the middle stays inside when shifted by a pixel
    found = list(batches(images, np.arange(10), 3, seed=0))
    assert [len(batch["labels"]) for batch in found] == [3, 3, 3]
    for batch in found:
        np.testing.assert_array_equal(batch["image"].max((1, 2, 3)), batch["labels"])
    assert len({int(label) for batch in found for label in batch["labels"]}) == 9


def test_images_are_shifted_by_one_pixel_at_most() -> None:
    image = np.zeros((500, 1, 8, 8), np.float32)
    image[:, 0, 3, 3] = 1
    moved = shift(image, np.random.default_rng(0))
    _, _, rows, columns = np.nonzero(moved)
    assert set(zip(rows.tolist(), columns.tolist())) == {
        (r, c) for r in (2, 3, 4) for c in (2, 3, 4)
    }


def test_both_parts_are_written_as_files(tmp_path: Path) -> None:
    images, labels = load_digits()
    training, held_out = (np.load(file) for file in write_digits(tmp_path))
    assert len(training["label"]) == TRAIN
    np.testing.assert_array_equal(np.concatenate([training["image"], held_out["image"]]), images)
    np.testing.assert_array_equal(np.concatenate([training["label"], held_out["label"]]), labels)


def test_outputs_of_the_network_are_chosen() -> None:
    [only] = build_network(outputs=["probabilities"]).graph.outputs
    assert only.name == "probabilities"
