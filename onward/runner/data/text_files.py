"""Text: the lines of a file, or blocks of characters or tokens for language models."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from onward.errors import DataError
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.dataset import (
    TEXT,
    Array,
    Column,
    Dataset,
    check_positions,
    choose_columns,
    read_chunks,
    stack_rows,
)
from onward.runner.data.line_index import LineIndex, map_file
from onward.runner.data.text_tokenizer import MASK, TOKENS, TextTokenizer

Vocabulary = CharacterVocabulary | TextTokenizer  # of running text

NEXT_TOKENS = "next_tokens"  # the column of targets
_CHUNK = 1 << 20  # bytes that are decoded at once


class TextLines:
    """The lines of a file that are not empty, in a column `text`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineIndex(path)
        self.columns = {"text": Column(TEXT)}

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.path).tolist()
        choose_columns(self.columns, columns, self.path)
        return {"text": stack_rows([self._lines[row] for row in rows], self.columns["text"])}


class MaskedBlocks:
    """Blocks with a column `attention_mask` of ones, for a model that takes one."""

    def __init__(self, blocks: Dataset) -> None:
        self._blocks = blocks
        self.columns = {**blocks.columns, MASK: blocks.columns[TOKENS]}

    def __len__(self) -> int:
        return len(self._blocks)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        names = choose_columns(self.columns, columns, "the text")
        found = self._blocks.read(positions, [name for name in names if name != MASK] or [TOKENS])
        if MASK in names:
            found[MASK] = np.ones_like(next(iter(found.values())))
        return {name: found[name] for name in names}


class TokenBlocks:
    """Blocks of `size` tokens, in a column `tokens`, and the token after each in `next_tokens`.

    >>> data = TokenBlocks(np.arange(7), 3)
    >>> len(data), data.read([1])["tokens"].tolist(), data.read([1])["next_tokens"].tolist()
    (2, [[3, 4, 5]], [[4, 5, 6]])
    """

    def __init__(
        self,
        tokens: Array,
        size: int,
        source: object = "the data",
        *,
        vocabulary: Vocabulary | None = None,
        codes: Array | None = None,
    ) -> None:
        """`codes`: the token of each number in `tokens`, where those are a file's bytes."""
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise DataError(
                f"{source}: tokens must be one row of whole numbers, not {tokens.dtype} of "
                f"shape {tokens.shape}"
            )
        if len(tokens) <= size:
            raise DataError(
                f"{source} has {len(tokens):,} tokens, too few for a block of {size} and the "
                "token after it\ngive a longer text, or smaller blocks"
            )
        self.vocabulary = vocabulary
        self._tokens, self._size, self._source, self._codes = tokens, size, source, codes
        self.columns = {name: Column("int64", (size,)) for name in (TOKENS, NEXT_TOKENS)}

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._size

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self._source)
        names = choose_columns(self.columns, columns, self._source)
        places = rows[:, None] * self._size + np.arange(self._size + 1)
        found = np.asarray(self._tokens[places])
        found = (found if self._codes is None else self._codes[found]).astype(np.int64)
        blocks = {TOKENS: found[:, :-1], NEXT_TOKENS: found[:, 1:]}
        return {name: np.ascontiguousarray(blocks[name]) for name in names}


def open_blocks(
    path: Path,
    size: int,
    *,
    vocabulary: Vocabulary | None = None,
    tokenize: Callable[[str], Iterable[int]] | None = None,
) -> TokenBlocks:
    """Blocks of a text file: of characters, or of the tokens that `tokenize` makes of the text.

    Without a vocabulary, it has every character of the file. A file of ASCII stays on disk; of
    any other text, the tokens are held in memory in the smallest type that fits.
    """
    if tokenize is not None:
        ids = np.fromiter(tokenize("".join(_decode(path))), np.int32)
        return TokenBlocks(ids, size, path)
    if isinstance(vocabulary, TextTokenizer):
        kind = np.min_scalar_type(vocabulary.size)
        parts = [vocabulary.encode(part, path).astype(kind) for part in _whole_lines(path)]
        return TokenBlocks(np.concatenate(parts), size, path, vocabulary=vocabulary)
    vocabulary = vocabulary or CharacterVocabulary.of(_decode(path))
    mapped = np.frombuffer(map_file(path), np.uint8)
    if all(int(mapped[at : at + _CHUNK].max()) < 128 for at in range(0, len(mapped), _CHUNK)):
        missing = np.array([chr(byte) not in vocabulary.characters for byte in range(128)])
        codes = np.zeros(128, np.int64)
        codes[~missing] = vocabulary.encode("".join(map(chr, np.flatnonzero(~missing))))
        for at in range(0, len(mapped), _CHUNK):
            unknown = missing[mapped[at : at + _CHUNK]]
            if unknown.any():  # the vocabulary was given: name the character
                vocabulary.encode(chr(mapped[at + int(unknown.argmax())]), path)
        return TokenBlocks(mapped, size, path, vocabulary=vocabulary, codes=codes)
    kind = np.min_scalar_type(len(vocabulary.characters))
    parts = [vocabulary.encode(part, path).astype(kind) for part in _decode(path)]
    return TokenBlocks(np.concatenate(parts), size, path, vocabulary=vocabulary)


def join_texts(dataset: Dataset, column: str, size: int, vocabulary: Vocabulary) -> TokenBlocks:
    """Blocks of the texts of a column, one after another, with the vocabulary's end after each.

    Texts that are empty are left out. The tokens are held in memory, as those of a file.
    """
    kind = np.min_scalar_type(vocabulary.size)
    parts = [np.zeros(0, kind)]
    for rows, texts in read_chunks(dataset, column):
        found = [
            tokens
            for row, text in zip(rows, texts)
            if text
            for tokens in (vocabulary.encode(text, f"row {row}"), vocabulary.end)
        ]
        parts.append(np.concatenate([parts[0], *found]).astype(kind))
    tokens = np.concatenate(parts)
    if not len(tokens):
        raise DataError(
            f"column {column!r} has no text in any of {len(dataset):,} rows\n"
            "give data with texts, or name another column with inputs"
        )
    return TokenBlocks(tokens, size, f"column {column!r}", vocabulary=vocabulary)


def _whole_lines(path: Path) -> Iterator[str]:
    """The text of a file, some of it at a time, cut after a line break: no word is cut."""
    rest = ""
    for part in _decode(path):
        text = rest + part
        cut = text.rfind("\n") + 1
        rest = text[cut:]
        if cut:
            yield text[:cut]
    yield rest


def _decode(path: Path) -> Iterator[str]:
    """The text of a file, some of it at a time, without a byte order mark."""
    mapped = map_file(path)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for at in range(0, len(mapped), _CHUNK):
            yield decoder.decode(mapped[at : at + _CHUNK], final=at + _CHUNK >= len(mapped))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}\nsave the file in UTF-8") from error
