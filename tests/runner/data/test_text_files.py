"""Text: lines, and blocks of characters or tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.errors import DataError
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.text_files import TextLines, TokenBlocks, open_blocks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "text.txt"


def test_lines_are_rows(path: Path) -> None:
    path.write_bytes("one\r\n\ntwo é\nthree".encode())
    data = TextLines(path)
    assert len(data) == 3
    assert data.read([2, 1])["text"].tolist() == ["three", "two é"]


@pytest.mark.parametrize("text", ["hello world, hello", "héllo wörld, hello"])
def test_blocks_of_characters_overlap_by_one(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    data = open_blocks(path, 4)
    assert len(data) == (len(text) - 1) // 4 and data.vocabulary is not None
    batch = data.read([0, 3])
    assert [data.vocabulary.decode(row) for row in batch["tokens"]] == [text[:4], text[12:16]]
    assert [data.vocabulary.decode(row) for row in batch["next_tokens"]] == [text[1:5], text[13:17]]
    assert batch["tokens"].dtype == np.int64
    np.testing.assert_array_equal(data.read([3], ["tokens"])["tokens"], batch["tokens"][1:])


def test_chunks_of_the_file_do_not_show(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("äöüß€" * 20, "utf-8")
    whole = open_blocks(path, 9).read(range(11))
    monkeypatch.setattr("onward.runner.data.text_files._CHUNK", 4)  # inside of characters
    np.testing.assert_array_equal(open_blocks(path, 9).read(range(11))["tokens"], whole["tokens"])


def test_a_byte_order_mark_is_no_character(path: Path) -> None:
    path.write_text("hello hello", "utf-8-sig")
    vocabulary = open_blocks(path, 4).vocabulary
    assert isinstance(vocabulary, CharacterVocabulary) and vocabulary.characters == " ehlo"


def test_a_tokenizer_of_the_user(path: Path) -> None:
    path.write_text("a bb ccc dddd e")
    data = open_blocks(path, 2, tokenize=lambda text: map(len, text.split()))
    assert data.read([1])["tokens"].tolist() == [[3, 4]]
    assert data.read([1])["next_tokens"].tolist() == [[4, 1]]


@pytest.mark.parametrize("text", ["abcd!abcd", "abcd!äbcd"])
def test_a_character_outside_a_given_vocabulary_is_named(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=r"text.txt has '!' as character \d, which the vocabulary"):
        open_blocks(path, 2, vocabulary=CharacterVocabulary.of(["abcdä"]))


def test_wrong_texts_are_refused(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"text.txt is empty"):
        open_blocks(path, 2)
    path.write_bytes(b"ab")
    with pytest.raises(DataError, match=r"has 2 tokens, too few for a block of 2"):
        open_blocks(path, 2)
    path.write_bytes(b"ab\xff\xff")
    with pytest.raises(DataError, match=r"text.txt is not UTF-8 text"):
        open_blocks(path, 2)
    with pytest.raises(DataError, match=r"one row of whole numbers, not float64 of shape \(3,\)"):
        TokenBlocks(np.zeros(3), 1)
