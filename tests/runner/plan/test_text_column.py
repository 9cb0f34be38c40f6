"""Language models on a column of texts: joined, cut into blocks, trained, resumed and stored."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import onward
from onward.errors import ColumnMissing, DataError, OptionError
from onward.runner.architectures.new_model import new_model
from onward.runner.callback import Callback
from onward.runner.events import StepRecord
from onward.runner.plan.prepared_feeds import prepare_feeds
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run import INTERRUPTED, Run
from tests.runner.plan.planned_runs import export, plan_of, reasons, train

STORIES = ["the cat sat", "a dog ran", "", "an owl flew by"] * 6
WORDS = ["[UNK]", "<|endoftext|>", "good", "bad", "film", "a"]
UNK, END, GOOD, BAD, FILM, A = range(len(WORDS))


def gpt2(vocabulary: int = 40, context: int = 6) -> ir.Model:
    return new_model(
        "gpt2", layers=1, heads=1, width=4, vocabulary=vocabulary, context=context, dropout=0.1
    )


def save_tokenizer(path: Path, words: list[str] = WORDS) -> str:
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, range(len(words)))), "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return str(path)


def blocks(plan: TrainingPlan) -> tuple[list[int], list[int]]:
    """The tokens and the targets of all rows, in their order."""
    rows = sorted(
        (int(position), tokens.tolist(), target.tolist())
        for batch in plan.training.epoch(0)
        for position, tokens, target in zip(batch.positions, *batch.feeds.values())
    )
    return [n for _, tokens, _ in rows for n in tokens], [n for *_, ends in rows for n in ends]


def write(path: Path, column: str = "text", texts: list[str] = STORIES) -> Path:
    """The texts as a file of the kind that its suffix says, with a number of each row."""
    rows = [{"number": number, column: text} for number, text in enumerate(texts)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_texts_of_a_column_are_one_text_in_blocks(tmp_path: Path, name: str) -> None:
    plan = plan_of(gpt2(), write(tmp_path / name), validation_split=0)
    text = "".join(f"{story}\n" for story in STORIES if story)
    vocabulary = plan.preprocessing.vocabulary
    assert vocabulary is not None and not vocabulary.columns
    tokens, targets = blocks(plan)
    used = (len(text) - 1) // 6 * 6
    assert vocabulary.decode(tokens) == text[:used]
    assert vocabulary.decode(targets) == text[1 : used + 1]
    chosen = reasons(plan)
    assert (chosen["text"], chosen["block"]) == ("text", "6 characters")
    assert train(plan)["loss"] > 0


def test_folder_of_datasets_with_its_validation_split(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for split, texts in (("train", STORIES), ("validation", ["zebras, too"] * 3)):
        folder = tmp_path / "stories" / split
        folder.mkdir(parents=True)
        table = pyarrow.table({"text": texts, "label": [0] * len(texts)})
        with (
            pyarrow.OSFile(str(folder / "data.arrow"), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as to,
        ):
            to.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    plan = plan_of(gpt2(), tmp_path / "stories")
    assert plan.sizes["validation rows"] == 5  # 36 characters: 5 blocks of 6 and one after each
    assert set(train(plan)) == {"loss", "perplexity"}


@pytest.mark.integration
def test_column_trains_as_a_text_file_of_its_lines(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"{story}\n" for story in STORIES if story))
    settings = {"runs": str(tmp_path / "runs"), "epochs": 2, "batch_size": 4, "threads": 1}
    model = gpt2()
    runs = [
        onward.train(model, data, name=data.suffix[1:], **settings)
        for data in (tmp_path / "rows.txt", write(tmp_path / "rows.jsonl"))
    ]
    assert runs[0].metrics == runs[1].metrics and "val_perplexity" in runs[0].metrics
    assert runs[0].model.read_bytes() == runs[1].model.read_bytes()


class StopAt(Callback):
    """Interrupts a run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run, record: StepRecord) -> None:
        if record.number == self.step:
            run.stop(INTERRUPTED)


@pytest.mark.integration
def test_run_on_a_column_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    data, model = write(tmp_path / "rows.jsonl", "story"), tmp_path / "m.onnx"
    onward.save(gpt2(), model)
    settings: dict[str, Any] = {
        "runs": str(tmp_path / "runs"), "epochs": 2, "batch_size": 4, "sample_text": 9,
        "inputs": {"tokens": ["story"]}, "ignore_columns": ["number"], "threads": 1,
    }  # fmt: skip
    whole = onward.train(model, data, name="whole", **settings)
    stopped = onward.train(model, data, name="parts", callbacks=[StopAt(3)], **settings)
    assert stopped.stopped == "interrupted" and stopped.steps == 3
    parts = onward.train(model, data, name="parts", resume=True, **settings)
    assert parts.model.read_bytes() == whole.model.read_bytes()
    samples = [(run.folder.path / "samples.txt").read_text() for run in (whole, parts)]
    assert samples[0] == samples[1] and samples[0].count("--- step") == 2


def test_tokenizers_end_of_text_is_between_texts(tmp_path: Path) -> None:
    words = save_tokenizer(tmp_path / "words.json")
    texts = {"text": ["a good film", "a bad film"] * 5}
    plan = plan_of(gpt2(len(WORDS), 4), texts, tokenizer=words, validation_split=0)
    assert blocks(plan)[0] == ([A, GOOD, FILM, END, A, BAD, FILM, END] * 5)[:36]
    assert reasons(plan)["block"] == "4 tokens"
    # without such a token, the tokens of a line break: none in this tokenizer
    plain = save_tokenizer(tmp_path / "plain.json", ["[UNK]", "good", "bad", "film", "a"])
    plan = plan_of(gpt2(5, 3), texts, tokenizer=plain, validation_split=0)
    assert blocks(plan)[0] == ([4, 1, 3, 4, 2, 3] * 5)[:27]


def test_tokenizer_next_to_the_model_is_used(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer.json")
    onward.save(gpt2(len(WORDS), 4), tmp_path / "m.onnx")
    plan = plan_of(tmp_path / "m.onnx", {"text": ["a good film", "a bad film"] * 5})
    assert reasons(plan)["tokenizer"] == str(tmp_path / "tokenizer.json")


def test_mask_of_a_language_model_is_ones(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    ids = op.input("input_ids", "int64", ("n", 4))
    mask = op.input("attention_mask", "int64", ("n", 4))
    table = op.initializer("table", np.eye(len(WORDS), dtype=np.float32))
    kept = op.Unsqueeze(op.Cast(mask, to=1), np.array([2]))
    model = op.model(logits=op.Mul(op.Gather(table, ids), kept))
    words = save_tokenizer(tmp_path / "words.json")
    texts = {"said": ["a good film", "a bad film"] * 5}
    for inputs in (None, {"input_ids": ["said"]}):
        feeds = next(plan_of(model, texts, tokenizer=words, inputs=inputs).training.epoch(0)).feeds
        assert (feeds["attention_mask"] == 1).all() and feeds["attention_mask"].shape == (4, 4)


def test_block_is_the_length_of_a_row(tmp_path: Path) -> None:
    plan = plan_of(gpt2(), write(tmp_path / "rows.jsonl"), block=3)
    assert next(plan.training.epoch(0)).feeds["tokens"].shape == (4, 3)
    labels = {"tokens": np.ones((8, 6), np.int64), "label": np.ones((8, 6), np.int64)}
    with pytest.raises(OptionError, match="block is for texts, but no input"):
        plan_of(gpt2(), labels, block=3)


def test_labels_of_tokens_are_no_running_text(tmp_path: Path) -> None:
    words = save_tokenizer(tmp_path / "words.json")
    data = {"text": ["a good film"] * 8, "tags": np.zeros((8, 3), np.int64)}
    plan = plan_of(gpt2(len(WORDS)), data, tokenizer=words)
    assert reasons(plan)["target"] == "tags"
    ignored = plan_of(gpt2(len(WORDS)), data, tokenizer=words, ignore_columns=["tags"])
    assert reasons(ignored)["target"] == "next_tokens"


def test_errors_of_columns_are_clear(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", "story")
    with pytest.raises(ColumnMissing, match=r"no column 'stori'\ndid you mean 'story'\?"):
        plan_of(gpt2(), data, inputs={"tokens": ["stori"]})
    with pytest.raises(DataError, match="takes texts or lists of tokens, column 'number' has int"):
        plan_of(gpt2(), data, inputs={"tokens": ["number"]})
    with pytest.raises(DataError, match=r"'story' has texts.*\nleave target out.*'tokens'"):
        plan_of(gpt2(), data, target="story")
    with pytest.raises(ColumnMissing, match=r"no column 'stori' .target.\ndid you mean 'story'"):
        plan_of(gpt2(), data, target="stori")
    assert reasons(plan_of(gpt2(), data, target="next_tokens"))["text"] == "story"
    two = {"first": STORIES, "second": STORIES}
    with pytest.raises(DataError, match="which column has the text of the model's input 'tokens'"):
        plan_of(gpt2(), two)
    with pytest.raises(OptionError, match="one column of texts, not 'first', 'second'"):
        plan_of(gpt2(), two, inputs={"tokens": ["first", "second"]})
    with pytest.raises(DataError, match=r"^column 'text' has no text in any of 3 rows\n"):
        plan_of(gpt2(), {"text": [""] * 3})
    with pytest.raises(DataError, match=r"^column 'text' has 3 tokens, too few for a block of 6"):
        plan_of(gpt2(), {"text": ["ab"]})
    with pytest.raises(ColumnMissing, match="no column 'story'"):
        plan_of(gpt2(), data, write(tmp_path / "held.jsonl", "text"))
    with pytest.raises(DataError, match="has 18 different characters, the model has 9"):
        plan_of(gpt2(9), data)


def test_stored_vocabulary_reads_columns_and_trains_again(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", "story", ["a cat", "the dog"] * 20)
    path = export(plan_of(gpt2(), data), tmp_path / "trained.onnx")
    few = write(tmp_path / "few.jsonl", "anything", ["the cat", "a"])
    prepared = prepare_feeds(path, [str(few)])
    assert prepared is not None and prepared.preprocessing.vocabulary is not None
    decode = prepared.preprocessing.vocabulary.decode
    assert decode(prepared.feeds["tokens"][0]) == "the cat"
    again = plan_of(path, data)
    assert reasons(again)["preprocessing"] == "of the model"
    assert again.preprocessing.vocabulary == prepared.preprocessing.vocabulary
    with pytest.raises(DataError, match=r"row 1 has 'z' as character 0, which the vocabulary"):
        plan_of(path, {"text": ["a cat", "zoo"] * 9})
