"""sample_text writes what a language model predicts, within the positions that it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.runner.callbacks.sample_text import generate

CONTEXT = 8


@pytest.mark.integration
def test_a_sample_may_be_longer_than_the_model_has_positions(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hold on. " * 12)
    model = onward.new_model("gpt2", layers=1, heads=1, width=8, vocabulary=8, context=CONTEXT)
    settings = {"max_steps": 2, "evaluate_every": 1, "batch_size": 4, "runs": str(tmp_path)}
    run = onward.train(model, text, sample_text=3 * CONTEXT, **settings)
    samples = (run.folder.path / "samples.txt").read_text()
    assert samples.startswith("--- step 1\n")
    [_, second] = samples.split("--- step 2\n")
    assert len(second) == 3 * CONTEXT + 1  # and the end of the line
    assert set(second) <= set("hold on. \n")


def test_sample_text_is_refused_for_models_without_a_text(tmp_path: Path) -> None:
    rows = {"x": np.eye(4, dtype=np.float32), "label": np.arange(4)}
    model = onward.new_model("mlp", features=4, hidden=(4,), classes=4)
    with pytest.raises(OptionError, match="sample_text is for language models"):
        onward.train(model, rows, sample_text=5, runs=str(tmp_path))


@pytest.mark.parametrize("context", [None, 4])
def test_generate_reads_the_last_tokens(context: int | None) -> None:
    lengths = []

    def count_up(tokens: np.ndarray) -> np.ndarray:
        lengths.append(tokens.shape[1])
        return 1e3 * np.eye(10)[(tokens + 1) % 10]

    found = generate(count_up, [3], 6, context, np.random.default_rng(0))
    assert found == [3, 4, 5, 6, 7, 8, 9]
    assert lengths == ([4] * 6 if context else [1, 2, 3, 4, 5, 6])
