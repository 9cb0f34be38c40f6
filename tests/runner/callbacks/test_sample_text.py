"""Sampled text of language models."""

from __future__ import annotations

from pathlib import Path

import onward
from onward.runner.architectures.new_model import new_model
from onward.runner.data.characters import CharacterVocabulary


def test_model_with_more_tokens_than_the_text_has_characters(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hällo wörld\n" * 20, encoding="utf-8")
    model = new_model("gpt2", size="tiny", vocabulary=60)
    run = onward.train(
        model, tmp_path / "text.txt", sample_text=40, max_steps=1, block=8, batch_size=4,
        runs=str(tmp_path / "runs"), data_threads=0,
    )  # fmt: skip
    _, _, written = (run.folder.path / "samples.txt").read_text("utf-8").partition("\n")
    assert set(written) <= set("hällo wörld\n")


def test_token_without_a_character_is_shown_as_unknown() -> None:
    assert CharacterVocabulary("ab").decode([0, 5, 1]) == "a\N{REPLACEMENT CHARACTER}b"
