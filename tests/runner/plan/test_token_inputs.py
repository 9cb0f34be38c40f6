"""Texts that a tokenizer.json turns into tokens: planned, trained, stored, run and served."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import onward
from onward.errors import ColumnMissing, DataError, OptionError, PackageMissing
from onward.runner.architectures.new_model import new_model
from onward.runner.data.batch_part import BatchPart
from onward.runner.data.text_tokenizer import TextTokenizer, read_tokenizer
from onward.runner.plan.prepared_feeds import prepare_feeds
from onward.runner.plan.preprocessing import METADATA_KEY, Preprocessing
from onward.serving.processing.stored_processing import stored_processing
from tests.runner.plan.planned_runs import export, plan_of, reasons, train

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "good", "bad", "film", "a", "very", "."]
UNK, CLS, SEP, PAD, GOOD, BAD, FILM, A, VERY, DOT = range(len(WORDS))
ROWS = [("a good film", "yes"), ("very bad .", "no"), ("a very very good film .", "yes")] * 4


def make_tokenizer(**truncation: Any) -> Tokenizer:
    """Words as in BERT: [CLS] text [SEP], with the padding token 3."""
    tokenizer = Tokenizer(models.WordLevel(dict(zip(WORDS, range(len(WORDS)))), "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    if truncation:
        tokenizer.enable_truncation(**truncation)
    return tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    make_tokenizer().save(str(tmp_path / "words.json"))
    return str(tmp_path / "words.json")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    path.write_text("review,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    return path


def bert(vocabulary: int = len(WORDS), context: int = 16) -> ir.Model:
    return new_model(
        "bert", layers=1, heads=1, width=4, vocabulary=vocabulary, context=context, dropout=0.0
    )


def first_feeds(model: Any, data: Any, **settings: Any) -> dict[str, Any]:
    """The feeds of all rows, in their order."""
    plan = plan_of(model, data, data, batch_size=64, **settings)
    assert plan.validation is not None
    [batch] = plan.validation.epoch(0)
    return dict(batch.feeds)


def test_texts_become_tokens_types_and_mask(tokenizer: str, reviews: Path) -> None:
    feeds = first_feeds(bert(), reviews, tokenizer=tokenizer)
    assert feeds["tokens"][:3].tolist() == [
        [CLS, A, GOOD, FILM, SEP, PAD, PAD, PAD],
        [CLS, VERY, BAD, DOT, SEP, PAD, PAD, PAD],
        [CLS, A, VERY, VERY, GOOD, FILM, DOT, SEP],
    ]
    assert feeds["mask"][:3].tolist() == [[1] * 5 + [0] * 3, [1] * 5 + [0] * 3, [1] * 8]
    assert not feeds["token_types"].any() and feeds["target"][:3].tolist() == [1, 0, 1]


def test_plan_says_what_is_made_of_the_text(tokenizer: str, reviews: Path) -> None:
    plan = plan_of(bert(), reviews, tokenizer=tokenizer)
    chosen = reasons(plan)
    assert chosen["tokenizer"] == tokenizer
    assert chosen["input tokens"] == chosen["input mask"] == "review"
    assert chosen["text length"] == "16 tokens at most" and chosen["target"] == "label"
    assert any("10 tokens" in each.why for each in plan.choices if each.what == "tokenizer")
    assert set(train(plan)) >= {"loss", "accuracy"}


def test_pairs_of_texts_have_two_types(tokenizer: str) -> None:
    data = {"a": ["good", "a film"] * 3, "b": ["bad .", "good"] * 3, "label": [0, 1] * 3}
    feeds = first_feeds(bert(), data, tokenizer=tokenizer, inputs={"tokens": ["a", "b"]})
    assert feeds["tokens"][0].tolist() == [CLS, GOOD, SEP, BAD, DOT, SEP]
    assert feeds["token_types"][0].tolist() == [0, 0, 0, 1, 1, 1]


def test_long_texts_are_cut_to_the_models_length(tokenizer: str, reviews: Path) -> None:
    assert first_feeds(bert(context=5), reviews, tokenizer=tokenizer)["tokens"].shape == (12, 5)
    assert first_feeds(bert(), reviews, tokenizer=tokenizer, block=4)["tokens"].shape == (12, 4)
    with pytest.raises(OptionError, match="block is 17, but the model has 16 positions"):
        first_feeds(bert(), reviews, tokenizer=tokenizer, block=17)


def test_tokenizers_own_length_is_kept(tmp_path: Path, reviews: Path) -> None:
    make_tokenizer(max_length=6).save(str(tmp_path / "cut.json"))
    plan = plan_of(bert(), reviews, tokenizer=str(tmp_path / "cut.json"))
    assert reasons(plan)["text length"] == "6 tokens at most"


def fixed_length() -> ir.Model:
    """A classifier that takes exactly 7 tokens, with int32 tokens and a mask of floats."""
    op = onward.OpBuilder()
    ids, mask = op.input("input_ids", "int32", ("n", 7)), op.input("mask", "float32", ("n", 7))
    table = op.initializer("table", np.eye(len(WORDS), dtype=np.float32))
    rows = op.Mul(op.Gather(table, ids), op.Unsqueeze(mask, np.array([2])))
    w = op.initializer("w", np.ones((len(WORDS), 2), np.float32))
    return op.model(scores=op.MatMul(op.ReduceSum(rows, np.array([1]), keepdims=0), w))


def test_rows_fill_a_fixed_length_in_the_inputs_types(tokenizer: str, reviews: Path) -> None:
    feeds = first_feeds(fixed_length(), reviews, tokenizer=tokenizer)
    assert feeds["input_ids"].dtype == np.int32 and feeds["mask"].dtype == np.float32
    assert feeds["input_ids"][0].tolist() == [CLS, A, GOOD, FILM, SEP, PAD, PAD]
    assert feeds["input_ids"][2].tolist() == [CLS, A, VERY, VERY, GOOD, FILM, SEP]


def test_tokenizer_next_to_the_model_is_used(tmp_path: Path, reviews: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    onward.save(bert(), tmp_path / "model.onnx")
    plan = plan_of(tmp_path / "model.onnx", reviews)
    assert "next to the model" in next(e.why for e in plan.choices if e.what == "tokenizer")
    with pytest.raises(DataError, match=r"give its tokenizer\.json as tokenizer"):
        plan_of(tmp_path / "model.onnx", reviews, tokenizer="characters")


def test_column_of_the_text_must_be_clear(tokenizer: str) -> None:
    data = {"first": ["good"] * 6, "second": ["bad"] * 6, "label": [0, 1] * 3}
    with pytest.raises(DataError, match="which column has the text of the model's input 'tokens'"):
        plan_of(bert(), data, tokenizer=tokenizer)
    named = {**data, "sentence": ["a film"] * 6}
    assert reasons(plan_of(bert(), named, tokenizer=tokenizer))["input tokens"] == "sentence"
    three = {"tokens": ["first", "second", "sentence"]}
    with pytest.raises(OptionError, match="one column of texts, or two of pairs"):
        plan_of(bert(), named, tokenizer=tokenizer, inputs=three)


def test_column_that_is_left_is_the_target(tokenizer: str) -> None:
    data = {"review": ["good", "bad"] * 4, "opinion": ["yes", "no"] * 4}
    assert reasons(plan_of(bert(), data, tokenizer=tokenizer))["target"] == "opinion"


def test_data_with_tokens_needs_no_tokenizer(tmp_path: Path) -> None:
    ids = np.array([[CLS, GOOD, SEP], [CLS, BAD, SEP]] * 4)
    data = {"tokens": ids, "token_types": ids * 0, "mask": ids * 0 + 1, "label": [0, 1] * 4}
    onward.save(bert(), tmp_path / "model.onnx")
    (tmp_path / "tokenizer.json").write_text("not read")
    plan_of(tmp_path / "model.onnx", data)
    with pytest.raises(OptionError, match="tokenizer is for texts, but no input"):
        plan_of(bert(), data, tokenizer=str(tmp_path / "tokenizer.json"))


def test_errors_are_one_clear_line(
    tmp_path: Path, tokenizer: str, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"tokenizer: there is no file .*missing.json"):
        plan_of(bert(), reviews, tokenizer=str(tmp_path / "missing.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(OptionError, match=r"tokenizer: .*broken.json cannot be read"):
        plan_of(bert(), reviews, tokenizer=str(tmp_path / "broken.json"))
    with pytest.raises(DataError, match=r"^the tokenizer has 10 tokens, the model 9\n"):
        plan_of(bert(vocabulary=9), reviews, tokenizer=tokenizer)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(PackageMissing, match=r"pip install 'onward\[text\]'"):
        plan_of(bert(), reviews, tokenizer=tokenizer)


def test_missing_text_is_named_by_its_row(tokenizer: str) -> None:
    rows = [{"text": "good", "label": 0}, {"text": "bad", "label": 1}] * 3
    plan = plan_of(bert(), rows, tokenizer=tokenizer)
    with pytest.raises(DataError, match="row 7 has no text to tokenise: None"):
        plan.preprocessing.feeds({"text": np.array([None])}, np.array([7]), target=False)
    with pytest.raises(ColumnMissing, match="the data has no column 'text'"):
        plan.preprocessing.feeds({"texts": np.array(["a"])}, target=False)


def mean_of_tokens() -> ir.Model:
    """A classifier of texts of any length, whose scores depend on padding: it has no mask."""
    op = onward.OpBuilder()
    ids = op.input("input_ids", "int64", ("n", "t"))
    table = op.initializer("table", np.eye(len(WORDS), dtype=np.float32))
    w = op.initializer("w", np.ones((len(WORDS), 2), np.float32))
    return op.model(
        scores=op.MatMul(op.ReduceMean(op.Gather(table, ids), np.array([1]), keepdims=0), w)
    )


LENGTHS = [1 + place * 7 % 11 for place in range(22)]
PADDED: dict[str, dict[str, Any]] = {
    "texts": {"text": [" ".join(["good"] * length) for length in LENGTHS]},
    "texts and a column of that name": {
        "text": [" ".join(["good"] * length) for length in LENGTHS],
        "tokens": LENGTHS,
    },
    "lists of tokens": {"input_ids": [np.full(length, GOOD) for length in LENGTHS]},
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("size", [1, 3])
def test_processes_pad_to_the_longest_row_of_their_batch(
    tokenizer: str, name: str, size: int
) -> None:
    label = [row % 2 for row in range(len(LENGTHS))]
    rows = [dict(zip([*PADDED[name], "label"], row)) for row in zip(*PADDED[name].values(), label)]
    given = {} if "input_ids" in PADDED[name] else {"tokenizer": tokenizer}
    ignored = [each for each in PADDED[name] if each == "tokens"]
    plan = plan_of(mean_of_tokens(), rows, target="label", ignore_columns=ignored, **given)
    special = 2 if given else 0  # [CLS] and [SEP]
    parts = [plan.training.part_of(BatchPart(rank, size)).epoch(0) for rank in range(size)]
    for batch, *own in zip(plan.training.epoch(0), *parts):
        longest = special + max(LENGTHS[row] for row in batch.positions)
        assert batch.feeds["input_ids"].shape == (len(batch), longest)
        for feed, values in batch.feeds.items():
            joined = np.concatenate([each.feeds[feed] for each in own])
            np.testing.assert_array_equal(joined, values)


# -- stored with the model


def test_stored_tokenizer_repeats_the_feeds(tmp_path: Path, tokenizer: str, reviews: Path) -> None:
    plan = plan_of(bert(), reviews, reviews, tokenizer=tokenizer, batch_size=64)
    path = export(plan, tmp_path / "trained.onnx")
    Path(tokenizer).unlink()
    prepared = prepare_feeds(path, [str(reviews)])
    assert prepared is not None and prepared.preprocessing == plan.preprocessing
    assert plan.validation is not None
    [batch] = plan.validation.epoch(0)
    for name in ("tokens", "mask", "token_types"):
        assert np.array_equal(prepared.feeds[name], batch.feeds[name])
    # of a text file, one row; of a table whose texts look like numbers, texts
    (tmp_path / "one.txt").write_text("a good film\n")
    one = prepare_feeds(path, [str(tmp_path / "one.txt")])
    assert one is not None and one.feeds["tokens"].tolist() == [[CLS, A, GOOD, FILM, SEP]]
    (tmp_path / "numbers.csv").write_text("review\n12\n")
    numbers = prepare_feeds(path, [str(tmp_path / "numbers.csv")])
    assert numbers is not None and numbers.feeds["tokens"].tolist() == [[CLS, UNK, SEP]]


def test_trained_model_is_trained_again_with_its_tokenizer(
    tmp_path: Path, tokenizer: str, reviews: Path
) -> None:
    path = export(plan_of(bert(), reviews, tokenizer=tokenizer), tmp_path / "trained.onnx")
    Path(tokenizer).unlink()
    again = plan_of(path, reviews)
    assert reasons(again)["preprocessing"] == "of the model"
    assert train(again)["loss"] > 0
    renamed = {"text": [row[0] for row in ROWS], "label": [row[1] for row in ROWS]}
    other = plan_of(path, renamed)
    assert other.preprocessing.vocabulary is not None
    assert other.preprocessing.vocabulary.columns == ("text",)


def test_stored_tokenizer_is_served(tokenizer: str, reviews: Path) -> None:
    plan = plan_of(bert(), reviews, tokenizer=tokenizer)
    served = stored_processing(plan.preprocessing.to_json(), [])
    assert [(each.name, each.datatype) for each in served.inputs] == [("review", "BYTES")]
    feeds = served.prepare({"review": np.array(["good film", "bad"], object)})
    assert feeds["tokens"].tolist() == [[CLS, GOOD, FILM, SEP], [CLS, BAD, SEP, PAD]]
    assert feeds["mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.integration
def test_run_of_a_text_classifier_learns(tmp_path: Path, tokenizer: str, reviews: Path) -> None:
    run = onward.train(
        bert(), reviews, tokenizer=tokenizer, runs=str(tmp_path / "runs"), epochs=30,
        learning_rate=0.02, batch_size=4, validation_split=0, data_threads=1,
    )  # fmt: skip
    prepared = prepare_feeds(run.model, [str(reviews)])
    assert prepared is not None
    with onward.InferenceSession(run.model) as session:
        names = [each.name for each in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, prepared.feeds)))
    assert prepared.preprocessing.decode(outputs) == [label for _, label in ROWS]


def test_stored_record_is_exact(tokenizer: str) -> None:
    found = read_tokenizer(Path(tokenizer))
    kept = TextTokenizer(found.definition, ("a", "b"), 9, True)
    assert TextTokenizer.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    assert found.size == len(WORDS) and found.start == CLS


# -- language models


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text("a good film .\na very bad film .\n" * 8)
    return path


def gpt2(vocabulary: int = len(WORDS)) -> ir.Model:
    return new_model("gpt2", layers=1, heads=1, width=4, vocabulary=vocabulary, context=6)


def test_language_model_reads_tokens_of_a_text(tokenizer: str, story: Path) -> None:
    plan = plan_of(gpt2(), story, tokenizer=tokenizer)
    assert reasons(plan)["block"] == "6 tokens"
    read = plan.training  # 72 tokens: 11 blocks of 6 and the token after each
    assert plan.sizes == {"training rows": 10, "validation rows": 1}
    batch = next(read.epoch(0))
    text = [A, GOOD, FILM, DOT, A, VERY, BAD, FILM, DOT] * 8
    row = int(batch.positions[0]) * 6
    assert batch.feeds["tokens"][0].tolist() == text[row : row + 6]
    assert batch.feeds["target"][0].tolist() == text[row + 1 : row + 7]
    assert train(plan)["loss"] > 0


def test_language_model_with_a_mask_is_fed_ones(tokenizer: str, story: Path) -> None:
    op = onward.OpBuilder()
    ids = op.input("input_ids", "int64", ("n", 4))
    mask = op.input("attention_mask", "int64", ("n", 4))
    table = op.initializer("table", np.eye(len(WORDS), dtype=np.float32))
    kept = op.Unsqueeze(op.Cast(mask, to=1), np.array([2]))
    model = op.model(logits=op.Mul(op.Gather(table, ids), kept))
    plan = plan_of(model, story, tokenizer=tokenizer)
    feeds = next(plan.training.epoch(0)).feeds
    assert (feeds["attention_mask"] == 1).all() and feeds["attention_mask"].shape == (4, 4)
    assert plan.preprocessing.feeds(
        {"text": np.array(["a good film ."], object)}, target=False
    ).keys() == {"input_ids", "attention_mask"}


def test_stored_tokenizer_of_a_language_model(tmp_path: Path, tokenizer: str, story: Path) -> None:
    path = export(plan_of(gpt2(), story, tokenizer=tokenizer), tmp_path / "trained.onnx")
    (tmp_path / "start.txt").write_text("a very good film .")
    prepared = prepare_feeds(path, [str(tmp_path / "start.txt")])
    assert prepared is not None
    assert prepared.feeds["tokens"].tolist() == [[A, VERY, GOOD, FILM, DOT]]
    scores = np.eye(len(WORDS))[[[GOOD, FILM]]]
    assert prepared.preprocessing.decode({"scores": scores}) == ["good film"]
    text = onward.load(path).metadata_props[METADATA_KEY]
    served = stored_processing(text, [])
    fed = served.prepare({"text": np.array(["a film"], object)})
    assert fed["tokens"].tolist() == [[A, FILM]]
    assert Preprocessing.from_json(text).vocabulary is not None
    again = plan_of(path, story)
    assert reasons(again)["tokenizer"] == "of the model"


def test_vocabulary_of_a_language_model_must_fit(tokenizer: str, story: Path) -> None:
    with pytest.raises(DataError, match=r"^the tokenizer has 10 tokens, the model 9\n"):
        plan_of(gpt2(vocabulary=9), story, tokenizer=tokenizer)


def test_sample_text_is_written_with_the_tokenizer(
    tmp_path: Path, tokenizer: str, story: Path
) -> None:
    run = onward.train(
        gpt2(), story, tokenizer=tokenizer, runs=str(tmp_path / "runs"), epochs=1, sample_text=5
    )
    written = (run.folder.path / "samples.txt").read_text().split("\n", 1)[1].split()
    assert set(written) <= set(WORDS)
