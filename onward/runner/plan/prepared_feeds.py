"""Feeds from a file of data, by the preprocessing that is stored with a model.

`onward run model.onnx rows.csv` repeats what training did to the columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import ColumnMissing, DataError, FeedError
from onward.graph.paths import check_exists
from onward.lazy import LazyModule
from onward.runner.data.class_labels import OneHotColumn
from onward.runner.data.csv_header import are_numbered
from onward.runner.data.dataset import TEXT as TEXT_TYPE
from onward.runner.data.dataset import Array, Dataset
from onward.runner.data.image_folder import (
    IMAGE_SUFFIXES,
    ImageFolder,
    decode_image,
    has_images,
    subfolders,
)
from onward.runner.data.number_scaling import FillMissing, Standardize
from onward.runner.data.open_data import READERS, holds_arrow, open_data
from onward.runner.data.text_tokenizer import TOKENS
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.preprocessing import METADATA_KEY, TEXT, Preprocessing

onnx = LazyModule("onnx")  # loaded when a model is read

_CSV = (".csv", ".tsv")
_TYPED = (".csv", ".tsv", ".jsonl", ".ndjson")  # readers that take types
_FEED_SUFFIXES = (".npz", ".npy", ".json", ".pb")  # of files that hold feeds


@dataclass(frozen=True)
class PreparedFeeds:
    """The feeds of some rows, and how their outputs are read."""

    feeds: dict[str, Array]
    preprocessing: Preprocessing
    note: str


def stored_preprocessing(model: Path) -> Preprocessing | None:
    """The preprocessing of a model's file; None if it has none, or is not an .onnx file."""
    if model.suffix not in (".onnx", ""):
        return None
    try:
        found = onnx.load_model(model, load_external_data=False).metadata_props
    except Exception:  # opening the model says why
        return None
    text = next((each.value for each in found if each.key == METADATA_KEY), None)
    return None if text is None else Preprocessing.from_json(text)


def prepare_feeds(model: Path, paths: Sequence[str]) -> PreparedFeeds | None:
    """The feeds of data files; None if the model has no preprocessing, or the files are feeds.

    Files that hold feeds (.npz, .npy, .json) stay feeds unless their names are columns.
    """
    if not paths or any("=" in path and not Path(path).exists() for path in paths):
        return None  # NAME=FILE is a feed
    preprocessing = stored_preprocessing(model)
    if preprocessing is None:
        return None
    files = [Path(path.removeprefix("@")).expanduser() for path in paths]
    if any(_holds_feeds(path, preprocessing) for path in files):
        return None
    for path in files:
        check_exists(path, "data")
    columns = _read(files, preprocessing)
    count = len(next(iter(columns.values())))
    feeds = preprocessing.feeds(columns, np.arange(count), target=False)
    rows = "1 row" if count == 1 else f"{count:,} rows"
    note = f"{rows} of {', '.join(map(str, files[:3]))}, prepared as in training"
    return PreparedFeeds(feeds, preprocessing, note)


def _holds_feeds(path: Path, preprocessing: Preprocessing) -> bool:
    """Whether a file is one of feeds: by its suffix, unless its names are columns."""
    suffix = path.suffix.lower()
    if suffix not in _FEED_SUFFIXES:
        return False
    inputs = {source.feed for source in preprocessing.inputs}
    names = _names(path) if path.is_file() else set()
    columns = set(preprocessing.needed_columns(target=False))
    return bool(names <= inputs) or not columns <= names


def _names(path: Path) -> set[str]:
    """The names of the arrays or rows of a file."""
    try:
        if path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return set(arrays.files)
        if path.suffix.lower() == ".json":
            value = json.loads(path.read_text("utf-8"))
            first = value[0] if isinstance(value, list) and value else value
            return set(first) if isinstance(first, dict) else set()
    except (OSError, ValueError, RecursionError):
        return set()  # reading it as feeds says why
    return set()


def _read(files: Sequence[Path], preprocessing: Preprocessing) -> dict[str, Array]:
    """The columns that the preprocessing needs, of all rows."""
    if all(path.suffix.lower() in IMAGE_SUFFIXES for path in files):
        return _read_images(files, preprocessing)
    vocabulary = preprocessing.vocabulary
    is_text = vocabulary is not None and len(vocabulary.columns) < 2  # not pairs of texts
    if is_text and all(path.suffix == ".txt" for path in files):
        return _read_texts(files, preprocessing)
    needed = preprocessing.needed_columns(target=False)
    opened = _open(files, preprocessing)
    rows = np.arange(len(opened))
    if vocabulary is not None and not vocabulary.columns and TOKENS not in opened.columns:
        column = _text_column(opened)
        return {TEXT: opened.read(rows, [column])[column]}
    return opened.read(rows, needed)


def _text_column(opened: Dataset) -> str:
    """The column of texts for a language model: the one called text, or the only one."""
    texts = [name for name, column in opened.columns.items() if column.dtype == TEXT_TYPE]
    return texts[0] if len(texts) == 1 else TEXT


def _open(files: Sequence[Path], preprocessing: Preprocessing) -> Dataset:
    if len(files) == 1 and files[0].suffix.lower() == ".json":
        return _open_json(files[0])
    if len(files) == 1 and files[0].is_dir() and any(map(has_images, subfolders(files[0]))):
        size, channels = _image_form(_image_source(files[0], preprocessing))
        return ImageFolder(files[0], size=size, channels=channels)
    if len(files) == 1 and files[0].is_file() and files[0].suffix.lower() not in READERS:
        raise FeedError(
            f"{files[0]}: files of this kind cannot be read\n"
            f"give feeds (.npy, .npz, .json), data ({', '.join(READERS)}), images, or a folder"
        )
    types = _types(preprocessing) if all(each.suffix.lower() in _TYPED for each in files) else None
    numbered = are_numbered(preprocessing.needed_columns(target=False))
    header = False if numbered and all(each.suffix.lower() in _CSV for each in files) else None
    source = files[0] if len(files) == 1 else list(files)
    if holds_arrow(source) and any(len(each.shape) == 4 for each in preprocessing.inputs):
        size, channels = _image_form(_image_source(files[0], preprocessing))
        return open_data(source, image_size=size, channels=channels)
    try:
        return open_data(source, types=types, header=header)
    except ColumnMissing:
        return open_data(source, header=header)  # reading the columns says which one is missing


def _types(preprocessing: Preprocessing) -> dict[str, str] | None:
    """The types of columns as in training: a few rows may look like another type."""
    texts = () if preprocessing.vocabulary is None else preprocessing.vocabulary.columns
    found = dict.fromkeys(texts, "text")
    for source in preprocessing.inputs:
        for column, encoders in source.encoders.items():
            first = encoders[0]
            if isinstance(first, OneHotColumn) and isinstance(first.categories[0], str):
                found[column] = "text"
            if isinstance(first, (FillMissing, Standardize)) and len(source.columns) > 1:
                found[column] = "float"
    return found or None


def _open_json(path: Path) -> Dataset:
    """Rows or columns of a .json file: [{"a": 1}, ...], or {"a": [1, ...]}."""
    value = json.loads(path.read_text("utf-8"))
    if isinstance(value, dict) and not all(isinstance(each, list) for each in value.values()):
        value = [value]  # one row
    return open_data(value)


def _read_images(files: Sequence[Path], preprocessing: Preprocessing) -> dict[str, Array]:
    source = _image_source(files[0], preprocessing)
    size, channels = _image_form(source)
    images = [decode_image(path.read_bytes(), path, size, channels) for path in files]
    batch = np.empty(len(images), object)
    batch[:] = images
    same = len({image.shape for image in images}) == 1
    return {source.columns[0]: np.stack(images) if same else batch}


def _image_source(path: Path, preprocessing: Preprocessing) -> FeedSource:
    found = [each for each in preprocessing.inputs if len(each.shape) == 4]
    if len(found) != 1 or len(preprocessing.inputs) != 1:
        raise DataError(
            f"{path} is an image, but the model takes the columns "
            f"{', '.join(preprocessing.needed_columns(target=False))}\ngive a file with columns"
        )
    return found[0]


def _image_form(source: FeedSource) -> tuple[tuple[int, int] | None, int]:
    """(height, width) and channels of the images that a feed is made of."""
    record: dict[str, Any] = next(
        (each.to_json() for each in source.encoders.get(source.columns[0], ())), {}
    )
    last = source.transpose == (0, 2, 3, 1)
    channels, height, width = source.shape[1:]
    if last:
        height, width, channels = source.shape[1:]
    size = (height, width) if height is not None and width is not None else None
    learnt = record.get("size")
    if size is None and learnt is not None:
        size = (int(learnt[0]), int(learnt[1]))
    return size, channels or 3


def _read_texts(files: Sequence[Path], preprocessing: Preprocessing) -> dict[str, Array]:
    """Each file as one row of text; in blocks of the model's length where that is fixed."""
    vocabulary = preprocessing.vocabulary
    assert vocabulary is not None
    texts = [path.read_text("utf-8-sig").removesuffix("\n") for path in files]
    length = preprocessing.inputs[0].shape[1]
    if length is None or vocabulary.columns:
        rows = np.empty(len(texts), object)
        rows[:] = texts
        return dict.fromkeys(vocabulary.columns or (TEXT,), rows)
    blocks = []
    for path, text in zip(files, texts):
        tokens = vocabulary.encode(text, path)
        if len(tokens) < length:
            raise DataError(
                f"{path} has {len(tokens)} tokens, the model takes {length}\ngive a longer text"
            )
        whole = len(tokens) // length * length
        blocks.append(tokens[:whole].reshape(-1, length))
    return {TOKENS: np.concatenate(blocks)}
