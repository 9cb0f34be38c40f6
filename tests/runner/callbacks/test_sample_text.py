"""SampleText: texts that a language model writes while it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

import onward
from onward.errors import OptionError


def test_samples_are_longer_than_the_context_and_of_known_characters(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd\n" * 60)
    model = onward.new_model(  # with more tokens than the text has characters
        "gpt2", layers=1, heads=1, width=4, vocabulary=20, context=8, dropout=0.0
    )
    settings = {"epochs": 1, "batch_size": 16, "sample_text": 12, "runs": str(tmp_path / "runs")}
    run = onward.train(model, text, **settings)
    [heading, *lines] = (run.folder.path / "samples.txt").read_text().split("\n")
    assert heading == f"--- step {run.steps}"
    assert len("\n".join(lines)) == 12 + 1 and set("".join(lines)) <= set("abcd")


def test_tables_are_refused(tmp_path: Path) -> None:
    model = onward.new_model("mlp", features=2, classes=2, hidden=[4])
    data = {"a": [0.0, 1.0] * 9, "b": [1.0, 0.0] * 9, "label": [0, 1] * 9}
    with pytest.raises(OptionError, match="for models that are trained on blocks of a text"):
        onward.train(model, data, sample_text=5, runs=str(tmp_path))
