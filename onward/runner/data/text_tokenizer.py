"""TextTokenizer: a tokenizer.json (Hugging Face's `tokenizers`) that turns texts into tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import DataError, OptionError, PackageMissing
from onward.runner.data.dataset import Array

TOKENS, MASK, TYPES = "tokens", "attention_mask", "token_type_ids"  # columns that it makes
_FIELDS = {TOKENS: "ids", MASK: "attention_mask", TYPES: "type_ids"}
_PADDING = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")  # tokens that may fill rows
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]")
_STARTS = ("[CLS]", "<s>", "<|begin_of_text|>", "<|endoftext|>", "\n", "\u010a")  # \u010a: byte 10


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer, and which texts it reads.

    `columns`: one of texts, or two of pairs, which get the special tokens of the tokenizer
    ([CLS], [SEP]). Without columns, it makes tokens of running text, for language models. Rows
    of more tokens than `length` are cut. Shorter ones are filled up to it with `fixed`, else up
    to the longest of the batch.
    """

    definition: str  # the content of tokenizer.json
    columns: tuple[str, ...] = ()
    length: int | None = None
    fixed: bool = False

    @property
    def size(self) -> int:
        """The number of tokens: one more than the highest."""
        return max(self._opened.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def start(self) -> int:
        """The token that texts are written after: one that marks a start, or a line break."""
        known = self._opened.get_vocab(with_added_tokens=True)
        return next((known[token] for token in _STARTS if token in known), 0)

    @property
    def end(self) -> Array:
        """The tokens between two texts: the one that marks an end, else those of a line break."""
        known = self._opened.get_vocab(with_added_tokens=True)
        found = [known[token] for token in _ENDS if token in known][:1]
        return np.array(found, np.int64) if found else self.encode("\n")

    def encode(self, text: str, source: object = "the text") -> Array:
        """The tokens of a running text, without special ones."""
        try:
            encoded = self._opened.encode(text, add_special_tokens=False)
        except Exception as error:  # tokenizers raises bare exceptions
            raise DataError(f"{source} cannot be tokenised: {error}") from error
        return np.asarray(encoded.ids, np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; a model may have more than the tokenizer."""
        known = self.size
        return str(self._opened.decode([int(each) for each in tokens if int(each) < known]))

    def tokenize(self, texts: Sequence[Array], positions: Array | None = None) -> dict[str, Array]:
        """Tokens, attention mask and token types of each row, all (rows, length).

        `texts` has one column, or two of pairs; `positions` name the rows in errors.
        """
        rows: Any = texts[0].tolist() if len(texts) == 1 else list(zip(*texts))
        for place, row in enumerate(rows):
            parts = [row] if len(texts) == 1 else row
            if not all(isinstance(part, str) for part in parts):
                number = place if positions is None else int(positions[place])
                raise DataError(f"row {number} has no text to tokenise: {row!r:.40}")
        encoded = self._opened.encode_batch(rows, add_special_tokens=bool(self.columns))
        width = len(encoded[0].ids) if encoded else 0
        found = {}
        for name, field in _FIELDS.items():
            values = [getattr(each, field) for each in encoded]
            found[name] = np.array(values, np.int64).reshape(len(rows), width)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "TextTokenizer",
            "definition": self.definition,
            "columns": list(self.columns),
            "length": self.length,
            "fixed": self.fixed,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TextTokenizer:
        length = record["length"]
        return cls(
            str(record["definition"]),
            tuple(map(str, record["columns"])),
            None if length is None else int(length),
            bool(record["fixed"]),
        )

    @property
    def own_length(self) -> int | None:
        """The length that the file itself cuts texts to."""
        truncation = _parse(self.definition).truncation
        return None if truncation is None else int(truncation["max_length"])

    @cached_property
    def _opened(self) -> Any:
        tokenizer = _parse(self.definition)
        if self.length is None:
            tokenizer.no_truncation()
        else:
            cut = {**(tokenizer.truncation or {}), "max_length": self.length}
            tokenizer.enable_truncation(**cut)
        fill = {**_padding(tokenizer), "length": self.length if self.fixed else None}
        tokenizer.enable_padding(**fill)
        return tokenizer


def read_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer of a file; `columns` and `length` are those of a plan."""
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise OptionError(f"tokenizer: there is no file {path}\ngive the path of a tokenizer.json")
    try:
        text = path.read_text("utf-8")
        return TextTokenizer(_parse(text).to_str(pretty=False))
    except (OSError, UnicodeDecodeError, DataError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(
            f"tokenizer: {path} cannot be read: {reason}\n"
            "give a tokenizer.json of Hugging Face's tokenizers"
        ) from error


def _padding(tokenizer: Any) -> dict[str, Any]:
    """How rows are filled: as the file says, or with its token of that name, or with 0."""
    if tokenizer.padding is not None:
        kept = ("direction", "pad_id", "pad_type_id", "pad_token")
        return {name: tokenizer.padding[name] for name in kept}
    for token in _PADDING:
        number = tokenizer.token_to_id(token)
        if number is not None:
            return {"pad_id": number, "pad_token": token}
    return {"pad_id": 0, "pad_token": tokenizer.id_to_token(0) or ""}


def _parse(definition: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise PackageMissing(
            "a tokenizer.json needs the package tokenizers, which is not installed\n"
            "install it with: pip install 'onward[text]'"
        ) from None
    try:
        return Tokenizer.from_str(definition)
    except Exception as error:  # tokenizers raises bare exceptions
        raise DataError(f"the tokenizer cannot be read: {error}") from error
