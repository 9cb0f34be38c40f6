"""The demo's model learns, and each provider's share of the demo runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from onward.cli.demo import measure
from onward.cli.digits import TRAIN, build_classifier, load_digits


def test_the_classifier_knows_digits_it_has_not_seen() -> None:
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8) and labels.max() == 9
    session = onward.InferenceSession(build_classifier(images, labels))
    (answers,) = session.run(None, {"image": images[TRAIN:]})
    assert np.mean(answers.argmax(1) == labels[TRAIN:]) > 0.94


@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_a_providers_share_is_measured(tmp_path: Path, provider: str) -> None:
    path = tmp_path / "digits.onnx"
    onward.save(build_classifier(*load_digits()), path)
    result = measure(str(path), provider)
    assert np.shape(result["answers"]) == (597, 10)
    assert result["latency"] > 0 and result["memory"] > 0
