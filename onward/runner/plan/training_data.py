"""Open the data of a run as its model needs it: images in its size, text in its blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onward.configs.setting_text import JOIN
from onward.errors import ColumnMissing, DataError, OptionError
from onward.graph.paths import check_exists
from onward.message_text import suggest_names
from onward.runner.config import TrainConfig
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.csv_files import CsvDataset
from onward.runner.data.csv_header import are_numbered
from onward.runner.data.dataset import (
    IMAGE,
    UNREADABLE,
    Dataset,
    JoinedDatasets,
    names_of_classes,
)
from onward.runner.data.image_folder import ImageFolder, has_images, subfolders
from onward.runner.data.in_memory import PairedDataset, paired_target
from onward.runner.data.joined_columns import JoinedColumns
from onward.runner.data.open_data import READERS, find_splits, holds_arrow, open_data
from onward.runner.data.text_files import MaskedBlocks, Vocabulary
from onward.runner.data.text_tokenizer import MASK, TOKENS
from onward.runner.plan.block_size import block_size
from onward.runner.plan.image_layout import image_sizes
from onward.runner.plan.model_shapes import ModelPorts
from onward.runner.plan.token_inputs import FoundTokenizer, token_inputs
from onward.runner.plan.training_plan import ChosenSetting

_HELD_OUT = ("val", "valid", "validation", "dev")  # splits of a folder to evaluate on


@dataclass(frozen=True)
class TrainingData:
    """The rows to train on, and those to evaluate on if they are separate."""

    training: Dataset
    validation: Dataset | None
    choices: tuple[ChosenSetting, ...] = ()
    vocabulary: Vocabulary | None = None  # of blocks of running text

    def class_names(self, target: str) -> tuple[str, ...]:
        """The names of classes that a folder of images has, or the column of the target."""
        names = names_of_classes(self.training).get(target)
        return names or tuple(getattr(self.training, "classes", ()))


def open_training_data(
    config: TrainConfig,
    ports: ModelPorts,
    data: Any = None,
    validation: Any = None,
    length: int | None = None,
    vocabulary: Vocabulary | None = None,
    tokenizer: FoundTokenizer | None = None,
) -> TrainingData:
    """Open the data of a config, or what is given instead; `length` is the model's, in tokens.

    `vocabulary` is the one of a model that was trained on text before, `tokenizer` the one that
    reads texts; without both, a token is a character.
    """
    source = config.data if data is None else data
    if source is None:
        raise OptionError(
            "there is no data to train on\ngive a file or a folder, such as data='rows.csv'"
        )
    held_out = config.validation if validation is None else validation
    splits = find_splits(source)
    split = next((name for name in _HELD_OUT if name in splits), None)
    choices = []
    if held_out is None and split is not None:
        held_out = splits[split]
        choices.append(
            ChosenSetting("validation", split, f"{source} has a folder or file of that name")
        )
    settings = _settings(config, source, ports)
    texts = _text_files(source)
    fields = token_inputs(ports)
    name = next((name for name, field in fields.items() if field == TOKENS), None)
    tokens = next((each for each in ports.inputs if each.name == name), None)
    if texts and tokens is not None:
        block, why = block_size(config, tokens, length)
        word = "characters"
        if tokenizer is not None:
            opened, choice = tokenizer.read()
            vocabulary, word = replace(opened, columns=(), length=None, fixed=False), "tokens"
            choices.append(choice)
        vocabulary = vocabulary or _vocabulary([*texts, *_text_files(held_out)])
        settings |= {"block": block, "vocabulary": vocabulary}
        choices.append(ChosenSetting("block", f"{block} {word}", why))
    else:
        vocabulary = None
        if config.block is not None and (_are_arrays(source) or not fields):
            settings["block"] = config.block  # texts in columns are cut later
    training = open_data(source, **settings)
    choices += _header_choices(training)
    choices += [
        ChosenSetting("left out", name, "its values are not numbers, texts, images or arrays")
        for name, column in training.columns.items()
        if column.dtype == UNREADABLE and name not in config.ignore_columns
    ]
    evaluated = None
    if held_out is not None:
        if _is_csv(held_out) and are_numbered(training.columns):
            settings.setdefault("header", False)
        evaluated = _open_held_out(held_out, split if held_out is splits.get(split or "") else None,
                                   source, settings, training)  # fmt: skip
        _check_same_columns(training, evaluated, config.ignore_columns)
    name = paired_target(training)
    if isinstance(evaluated, PairedDataset) and name and name not in evaluated.columns:
        evaluated = evaluated.with_target(name)  # a series has a name, an array has none
    parts = _target_parts(config, training)
    if parts and config.target is not None:
        training = JoinedColumns(training, parts, config.target)
        evaluated = None if evaluated is None else JoinedColumns(evaluated, parts, config.target)
    if vocabulary is not None and MASK in fields.values():
        training = MaskedBlocks(training)
        evaluated = None if evaluated is None else MaskedBlocks(evaluated)
    return TrainingData(training, evaluated, tuple(choices), vocabulary)


def _target_parts(config: TrainConfig, data: Dataset) -> list[str]:
    """The columns of a target a+b, which become one; empty if the target is one column."""
    named = (config.target or "").split(JOIN)
    if len(named) < 2 or config.target in data.columns:
        return []
    for name in named:
        if name not in data.columns:
            hint = suggest_names(name, data.columns, "its columns are")
            raise ColumnMissing(f"the data has no column {name!r} (target)\n{hint}")
    return named


def _settings(config: TrainConfig, source: Any, ports: ModelPorts) -> dict[str, Any]:
    """The settings of the reader; None are left out, for a reader refuses what it does not take."""
    settings: dict[str, Any] = {
        "types": config.types, "delimiter": config.delimiter, "header": config.header,
    }  # fmt: skip
    if config.skip_broken and not _is_image_folder(source):
        raise OptionError("skip_broken is for folders of images\nleave it out")
    image = next((each for each in ports.inputs if len(each.shape) == 4), None)
    if _is_image_folder(source) or (image is not None and holds_arrow(source)):
        channels, height, width, _ = image_sizes(image) if image else (3, None, None, False)
        if height is not None and width is not None:
            settings["image_size"] = (height, width)
        settings |= {"channels": channels, "skip_broken": config.skip_broken or None}
    return {name: value for name, value in settings.items() if value is not None}


def _header_choices(data: Dataset) -> list[ChosenSetting]:
    """Whether the first line of CSV files was taken for names, where that is not plain to see."""
    parts = data.parts if isinstance(data, JoinedDatasets) else (data,)
    found = [each for each in parts if isinstance(each, CsvDataset) and each.header.why]
    if not found:
        return []
    first = found[0]
    if first.header.is_there:
        value, say = "names in the first line", "--no-header if it is a row"
    else:
        names = list(first.columns)
        value = f"none: columns are called {names[0]} to {names[-1]}"
        say = "--header if it has names"
    return [ChosenSetting("header", value, f"{first.header.why}; {say}")]


def _open_held_out(
    held_out: Any, split: str | None, source: Any, settings: dict[str, Any], training: Dataset
) -> Dataset:
    if split is not None:
        return open_data(source, split=split, **settings)
    if not isinstance(training, ImageFolder) or not isinstance(held_out, (str, os.PathLike)):
        return open_data(held_out, **(settings if _is_path(held_out) else {}))
    folder = Path(held_out).expanduser()
    check_exists(folder, "folder of images")
    for each in subfolders(folder):
        if each.name not in training.classes and has_images(each):
            raise DataError(
                f"{folder} has the class {each.name!r}, which the training data has not\n"
                "remove the folder, or put images of the class into the training data"
            )
    return ImageFolder(
        folder,
        size=settings.get("image_size"),
        channels=settings.get("channels") or 3,
        classes=training.classes,
        skip_broken=bool(settings.get("skip_broken")),
    )


def _check_same_columns(training: Dataset, evaluated: Dataset, ignored: Sequence[str]) -> None:
    for name, column in training.columns.items():
        if name in ignored or name not in evaluated.columns:
            continue  # a column that is needed and missing is reported when it is read
        other = evaluated.columns[name]
        if (column.dtype == IMAGE) != (other.dtype == IMAGE) or column.is_number != other.is_number:
            raise DataError(
                f"column {name!r} is {column} in the training data, but {other} in the validation "
                f"data\nsay what it is, such as types={{{name!r}: 'text'}}"
            )


def _is_csv(source: Any) -> bool:
    listed = source if isinstance(source, (list, tuple)) else [source]
    return all(_is_path(each) and Path(each).suffix.lower() in (".csv", ".tsv") for each in listed)


def _text_files(source: Any) -> list[Path]:
    """The .txt files of a source; empty if it is anything else."""
    listed = source if isinstance(source, (list, tuple)) else [source]
    if not listed or not all(isinstance(each, (str, os.PathLike)) for each in listed):
        return []
    paths = [Path(each).expanduser() for each in listed]
    for folder in [each for each in paths if os.path.isdir(each)]:
        paths.remove(folder)
        inside = find_splits(folder).values() or sorted(folder.iterdir())
        if _is_image_folder(folder):
            return []
        paths += [each for each in inside if each.is_file() and each.suffix.lower() in READERS]
    return paths if all(each.suffix.lower() == ".txt" for each in paths) else []


def _are_arrays(source: Any) -> bool:
    listed = source if isinstance(source, (list, tuple)) else [source]
    return all(_is_path(each) and Path(each).suffix.lower() == ".npy" for each in listed)


def _vocabulary(paths: Iterable[Path]) -> CharacterVocabulary:
    """The characters of several files: one vocabulary, so that a number is one character."""

    def texts() -> Iterable[str]:
        for path in paths:
            check_exists(path, "text file")
            try:
                with path.open(encoding="utf-8", newline="") as file:
                    yield from file
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8 text: {error}\nsave the file in UTF-8"
                ) from error

    return CharacterVocabulary.of(texts())


def _is_image_folder(source: Any) -> bool:
    if not isinstance(source, (str, os.PathLike)) or not os.path.isdir(os.path.expanduser(source)):
        return False
    folder = Path(source).expanduser()
    found = list(find_splits(folder).values()) or [folder]
    files = [each for each in folder.iterdir() if each.suffix.lower() in set(READERS) - {".txt"}]
    inside = [each for part in found if part.is_dir() for each in subfolders(part)]
    return not files and any(map(has_images, inside))


def _is_path(source: Any) -> bool:
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    return isinstance(first, (str, os.PathLike))
