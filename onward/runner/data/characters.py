"""CharacterVocabulary: the characters of a text, each with a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import Array, Dataset, read_chunks
from onward.runner.data.text_tokenizer import MASK, TOKENS

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class CharacterVocabulary:
    """Characters in sorted order; a text becomes their places in it.

    >>> vocabulary = CharacterVocabulary.of(["hello"])
    >>> vocabulary.encode("hole").tolist(), vocabulary.decode([1, 0])
    ([1, 3, 2, 0], 'he')
    """

    characters: str

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.characters)

    @property
    def start(self) -> int:
        """The token that texts are written after: a line break, if there is one."""
        return max(self.characters.find("\n"), 0)

    @property
    def end(self) -> Array:
        """The tokens between two texts: a line break, if the vocabulary has it."""
        return self.encode("\n" if "\n" in self.characters else "")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of data that it reads: none, it is for running text."""
        return ()

    @classmethod
    def of(cls, texts: Iterable[str]) -> CharacterVocabulary:
        """The vocabulary of some texts."""
        found: set[str] = set()
        for text in texts:
            found.update(text)
        return cls("".join(sorted(found)))

    @classmethod
    def fit(
        cls, dataset: Dataset, column: str, positions: Array | None = None
    ) -> CharacterVocabulary:
        """The vocabulary of a column of texts."""
        chunks = read_chunks(dataset, column, positions)
        return cls.of(text for _, values in chunks for text in values)

    def encode(self, text: str, source: object = "the text") -> Array:
        """The number of each character of a text."""
        try:
            points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        except UnicodeEncodeError as error:  # a lone surrogate
            raise DataError(f"{source} is not a text of Unicode: {error}") from error
        known = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        places = np.searchsorted(known, points)
        wrong = known[np.minimum(places, len(known) - 1)] != points if len(known) else points >= 0
        if wrong.any():
            place = int(wrong.argmax())
            raise DataError(
                f"{source} has {text[place]!r} as character {place}, which the vocabulary of "
                f"{len(self.characters)} characters has not\n"
                "train on text that has it, or remove it"
            )
        return places.astype(np.int64)

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """The numbers of each text's characters: an array of objects, for lengths vary."""
        batch = np.empty(len(array), object)
        for row, text in enumerate(array):
            place = row if positions is None else positions[row]
            batch[row] = self.encode(text, f"row {place}")
        return batch

    def tokenize(self, texts: Sequence[Array], positions: Array | None = None) -> dict[str, Array]:
        """The columns that a model reads: tokens, and a mask of ones."""
        tokens = self.apply(texts[0], positions)
        masks = np.empty(len(tokens), object)
        for row, each in enumerate(tokens):
            masks[row] = np.ones_like(each)
        return {TOKENS: tokens, MASK: masks}

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers; a model may have more tokens than the text had characters."""
        known = self.characters
        return "".join(known[int(n)] if int(n) < len(known) else _UNKNOWN for n in numbers)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "CharacterVocabulary", "characters": self.characters}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CharacterVocabulary:
        return cls(str(record["characters"]))
