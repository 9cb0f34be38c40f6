"""Preprocessing: the columns of data as feeds of a model, stored with it as JSON.

What training learnt about columns (classes, means, vocabularies, sizes of images) is repeated by
`onward run` and by serving. It is kept in the model's metadata, under one key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import ColumnMissing, DataError
from onward.message_text import suggest_names
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.dataset import Array
from onward.runner.data.encode import encoder_from_json
from onward.runner.data.text_files import Vocabulary
from onward.runner.data.text_tokenizer import MASK, TOKENS, TYPES, TextTokenizer
from onward.runner.plan.feed_source import FeedSource

if TYPE_CHECKING:  # `onward run` reads preprocessing without it
    import onnx_ir as ir

METADATA_KEY = "onward.preprocessing"
TEXT = "text"  # the column of a running text
_VERSION = 1


@dataclass(frozen=True)
class Preprocessing:
    """The feeds of a model from columns of data.

    >>> source = FeedSource("x", ("a", "b"), {}, "float32", (None, 2))
    >>> preprocessing = Preprocessing((source,), output="y", classes=("cat", "dog"))
    >>> preprocessing.feeds({"a": np.array([1.0]), "b": np.array([2])})["x"].tolist()
    [[1.0, 2.0]]
    >>> preprocessing.decode({"y": np.array([[0.1, 0.9]])})
    ['dog']
    """

    inputs: tuple[FeedSource, ...]
    target: FeedSource | None = None  # for training and evaluation
    output: str | None = None  # the output that answers; its classes are those of the target
    classes: tuple[Any, ...] = field(default=())
    vocabulary: Vocabulary | None = None  # makes a column `tokens` of texts
    probabilities: bool = False  # the output ends in Softmax or Sigmoid

    def feeds(
        self,
        columns: Mapping[str, Array],
        positions: Array | None = None,
        target: bool = True,
    ) -> dict[str, Array]:
        """The model's inputs, and the loss's target with `target`, from a batch of raw columns.

        `positions` name the rows in errors. The target is left out where its column is missing
        and `target` is False.
        """
        columns = self._tokenized(columns, positions)
        sources = (*self.inputs, self.target) if target and self.target else self.inputs
        for name in (column for source in sources for column in source.columns):
            _check_has(columns, name)
        return {source.feed: source.make(columns, positions) for source in sources}

    def needed_columns(self, target: bool = True) -> list[str]:
        """The columns that `feeds` reads."""
        sources = (*self.inputs, self.target) if target and self.target else self.inputs
        names = [name for source in sources for name in source.columns]
        if self.vocabulary is not None and self.vocabulary.columns:  # they are made of these
            made = (TOKENS, MASK, TYPES)
            names = [*self.vocabulary.columns, *(name for name in names if name not in made)]
        return list(dict.fromkeys(names))

    def decode(self, outputs: Mapping[str, Any]) -> list[Any]:
        """The answer of each row: a class, or a text from a vocabulary; empty if neither."""
        if self.output is None or self.output not in outputs:
            return []
        scores = np.asarray(outputs[self.output])
        if self.vocabulary is not None and scores.ndim == 3:
            best = scores[..., : self.vocabulary.size].argmax(-1)
            return [self.vocabulary.decode(row) for row in best]
        if not self.classes or scores.ndim not in (1, 2):
            return []
        if scores.ndim == 2 and scores.shape[1] > 1:
            best = scores[:, : len(self.classes)].argmax(1)
        else:
            best = (scores.reshape(-1) > (0.5 if self.probabilities else 0.0)).astype(np.int64)
        return [self.classes[int(each)] for each in best]

    def to_json(self) -> str:
        """The preprocessing as JSON; `from_json` reads exactly the same."""
        return json.dumps(
            {
                "version": _VERSION,
                "inputs": [source.to_json() for source in self.inputs],
                "target": None if self.target is None else self.target.to_json(),
                "output": self.output,
                "classes": list(self.classes),
                "vocabulary": None if self.vocabulary is None else self.vocabulary.to_json(),
                "probabilities": self.probabilities,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """The preprocessing that `to_json` wrote."""
        try:
            record = json.loads(text)
            if record["version"] != _VERSION:
                raise DataError(
                    f"the model's preprocessing is of version {record['version']}, this release "
                    f"reads version {_VERSION}\nupdate onward"
                )
            kept, vocabulary = record["target"], record["vocabulary"]
            return cls(
                tuple(FeedSource.from_json(each) for each in record["inputs"]),
                None if kept is None else FeedSource.from_json(kept),
                record["output"],
                tuple(record["classes"]),
                None if vocabulary is None else _vocabulary(vocabulary),
                bool(record["probabilities"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"the model's preprocessing is damaged: {error!r}\nexport the model again"
            ) from error

    def _tokenized(
        self, columns: Mapping[str, Array], positions: Array | None
    ) -> Mapping[str, Array]:
        """Columns with `tokens`, made of texts where there is a vocabulary."""
        if self.vocabulary is None:
            return columns
        names = self.vocabulary.columns or (TEXT,)
        for name in self.vocabulary.columns:
            _check_has(columns, name)
        if not self.vocabulary.columns and (TOKENS in columns or TEXT not in columns):
            return columns
        texts = [columns[name] for name in names]
        return {**columns, **self.vocabulary.tokenize(texts, positions)}


def store(model: ir.Model, preprocessing: Preprocessing) -> None:
    """Write the preprocessing into the model's metadata."""
    model.metadata_props[METADATA_KEY] = preprocessing.to_json()


def read_preprocessing(model: ir.Model) -> Preprocessing | None:
    """The preprocessing that is stored with a model; None if there is none."""
    text = model.metadata_props.get(METADATA_KEY)
    return None if text is None else Preprocessing.from_json(text)


def _check_has(columns: Mapping[str, Array], name: str) -> None:
    if name not in columns:
        hint = suggest_names(name, columns, "its columns are")
        raise ColumnMissing(f"the data has no column {name!r}\n{hint}")


def _vocabulary(record: Mapping[str, Any]) -> Vocabulary:
    if record.get("kind") == TextTokenizer.__name__:
        return TextTokenizer.from_json(record)
    encoder = encoder_from_json(record)
    if not isinstance(encoder, CharacterVocabulary):
        raise DataError("the model's preprocessing is damaged: its vocabulary is none")
    return encoder
