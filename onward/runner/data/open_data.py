"""open_data: choose the reader for a source by its type, its suffix and its content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import DataError, OptionError
from onward.graph.paths import check_exists, to_path
from onward.message_text import suggest_names
from onward.runner.data import arrow_files
from onward.runner.data.array_files import map_npy, npz_splits, open_npy, open_npz
from onward.runner.data.csv_files import CsvDataset
from onward.runner.data.dataset import Dataset, JoinedDatasets, SelectedColumns, choose_columns
from onward.runner.data.image_folder import ImageFolder, class_names, has_images, subfolders
from onward.runner.data.in_memory import MEMORY_LIMIT
from onward.runner.data.json_lines import JsonLinesDataset
from onward.runner.data.memory_sources import open_memory
from onward.runner.data.reader_options import ReaderOptions
from onward.runner.data.text_files import TextLines, TokenBlocks, Vocabulary, open_blocks

_UNPACK = "unpack it first, because rows are read by position; "
_CONVERSIONS = {
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), _UNPACK),
    ".json": "write each row as a line of its own into a .jsonl file; ",
    ".xlsx": "save it as CSV; ",
}
SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test")
_TRAINING = ("train", "training")
_ARROW = (".parquet", ".arrow", ".feather")
_ARROW_OPTIONS = ("types", "image_size", "channels")


def open_data(
    source: Any,
    *,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    types: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
    skip_broken: bool | None = None,
    block: int | None = None,
    tokenize: Callable[[str], Iterable[int]] | None = None,
    vocabulary: Vocabulary | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Dataset:
    """Open data to read rows from: a file, a folder, several files, a table, arrays, or rows.

    Rows of Python (a list or an iterator of dicts or tuples, a dataset or a DataLoader of torch)
    are read into memory, up to `memory_limit` bytes. `target` is a column that must exist.
    `columns` are those to keep.
    `split` chooses a part of a folder that has several, such as train and val; None: train.

    - CSV, JSONL, Parquet, Arrow: `types`, such as {"zip": "text"}; CSV: `delimiter`, `header`
    - folders of images, Parquet, Arrow: `image_size` (height, width), `channels`
    - folders of images: `skip_broken`
    - text, and .npy files of tokens: `block`; text: `tokenize`, `vocabulary`

    >>> import numpy as np
    >>> data = open_data({"x": np.zeros((4, 2)), "label": np.arange(4)}, target="label")
    >>> len(data), list(data.columns)
    (4, ['x', 'label'])
    """
    options = ReaderOptions(
        columns=columns, types=types, delimiter=delimiter, header=header, image_size=image_size,
        channels=channels, skip_broken=skip_broken, block=block, tokenize=tokenize,
        vocabulary=vocabulary,
    )  # fmt: skip
    name = source if isinstance(source, (str, os.PathLike)) else "the data"
    data = _open(source, split, options, memory_limit)
    if columns is not None:
        data = SelectedColumns(data, columns, name)
    if target is not None:
        choose_columns(data.columns, [target], name)
    return data


def find_splits(source: Any) -> dict[str, Path]:
    """The splits of a folder by name: its subfolders, or its files, called train, val, test, ...

    An .npz file of arrays called x_train, y_train, x_test, y_test has splits, too: itself.
    Empty for any other source, and where there is no training split.
    """
    if not isinstance(source, (str, os.PathLike)):
        return {}
    if Path(source).suffix.lower() == ".npz":
        splits = npz_splits(Path(source), SPLITS)
        is_split = any(name in splits for name in _TRAINING)
        return dict.fromkeys(splits, Path(source)) if is_split else {}
    if not os.path.isdir(source):
        return {}
    entries = sorted(entry for entry in Path(source).iterdir() if entry.stem.lower() in SPLITS)
    found = {
        entry.stem.lower(): entry
        for entry in entries
        if entry.is_dir() or entry.suffix.lower() in READERS
    }
    return found if any(name in found for name in _TRAINING) else {}


def holds_arrow(source: Any) -> bool:
    """Whether a path is one of Arrow or Parquet files, whose columns may be images."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source).expanduser()
    if not path.is_dir():
        return path.suffix.lower() in _ARROW
    splits = find_splits(path)
    if splits:
        return all(map(holds_arrow, splits.values()))
    suffixes = {each.suffix.lower() for each in path.iterdir()} & set(READERS)
    return arrow_files.is_saved_dataset(path) or (bool(suffixes) and suffixes <= set(_ARROW))


def _open(source: Any, split: str | None, options: ReaderOptions, memory_limit: int) -> Dataset:
    if isinstance(source, (str, os.PathLike)):
        return _open_path(to_path(source).expanduser(), split, options)
    if split is not None:
        raise OptionError(f"split={split!r} is for folders\nleave it out")
    if isinstance(source, (list, tuple)) and source and _all_paths(source):
        paths = [to_path(each).expanduser() for each in source]
        return _join(paths, [_open_path(path, None, options) for path in paths])
    return open_memory(source, options, memory_limit)


def _open_path(path: Path, split: str | None, options: ReaderOptions) -> Dataset:
    check_exists(path, "data")
    splits = find_splits(path)
    if split is not None and split not in splits:
        hint = suggest_names(split, splits, "its splits are")
        raise DataError(f"{path} has no split {split!r}\n{hint}")
    if splits:
        name = split or next(name for name in _TRAINING if name in splits)
        if splits[name] == path:
            options.only(path)
            return open_npz(path, name)
        return _open_split(splits[name], list(splits.values()), options)
    return _open_folder(path, options) if path.is_dir() else _open_file(path, options)


def _open_split(chosen: Path, splits: Sequence[Path], options: ReaderOptions) -> Dataset:
    if chosen.is_dir() and _is_image_folder(chosen):
        folders = [each for each in splits if each.is_dir()]
        return _open_images(chosen, options, class_names(chosen, folders))
    return _open_path(chosen, None, options)


def _open_file(path: Path, options: ReaderOptions) -> Dataset:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        advice = _CONVERSIONS.get(path.suffix.lower(), "")
        raise DataError(
            f"{path}: files of this kind ({path.suffix or 'no suffix'}) cannot be read\n"
            f"{advice}supported are {', '.join(READERS)}, and folders of images"
        )
    return reader(path, options)


def _open_folder(folder: Path, options: ReaderOptions) -> Dataset:
    if arrow_files.is_saved_dataset(folder):
        options.only(folder, *_ARROW_OPTIONS)
        return arrow_files.open_saved_dataset(
            folder, options.types, options.columns, options.image_shape
        )
    files = sorted(
        each
        for each in folder.iterdir()
        if each.suffix.lower() in READERS and not each.name.startswith(".")
    )
    suffixes = sorted({each.suffix.lower() for each in files})
    if suffixes in ([], [".txt"]) and _is_image_folder(folder):  # with a README.txt, often
        return _open_images(folder, options, None)
    if len(suffixes) > 1:
        raise DataError(
            f"{folder} has files of several kinds: {', '.join(suffixes)}\n"
            "give the path of one, or a list of paths"
        )
    if suffixes == [".npy"]:
        options.only(folder)
        return open_npy(files)
    if files:
        return _join(files, [_open_file(each, options) for each in files])
    raise DataError(
        f"{folder} has no data that can be read\n"
        f"supported are {', '.join(READERS)}, and folders of images: FOLDER/CLASS/FILE"
    )


def _open_images(folder: Path, options: ReaderOptions, classes: Any) -> ImageFolder:
    options.only(folder, "image_size", "channels", "skip_broken")
    return ImageFolder(
        folder,
        size=options.image_size,
        channels=options.channels or 3,
        classes=classes,
        skip_broken=bool(options.skip_broken),
    )


def _is_image_folder(folder: Path) -> bool:
    return any(has_images(each) for each in subfolders(folder))


def _open_csv(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, "types", "delimiter", "header")
    tab = "\t" if path.suffix.lower() == ".tsv" else None
    return CsvDataset(
        path, delimiter=options.delimiter or tab, types=options.types, header=options.header
    )


def _open_json(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, "types")
    return JsonLinesDataset(path, types=options.types, columns=options.columns)


def _open_parquet(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, *_ARROW_OPTIONS)
    return arrow_files.ParquetDataset(
        path, types=options.types, columns=options.columns, image_shape=options.image_shape
    )


def _open_arrow(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, *_ARROW_OPTIONS)
    return arrow_files.open_arrow(path, options.types, options.columns, options.image_shape)


def _open_npz(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path)
    return open_npz(path)


def _open_npy(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, "block")
    return TokenBlocks(map_npy(path), options.block, path) if options.block else open_npy([path])


def _open_text(path: Path, options: ReaderOptions) -> Dataset:
    options.only(path, "block", "tokenize", "vocabulary")
    if options.block is None:
        return TextLines(path)
    return open_blocks(
        path, options.block, vocabulary=options.vocabulary, tokenize=options.tokenize
    )


def _join(paths: Sequence[Path], parts: Sequence[Dataset]) -> Dataset:
    return parts[0] if len(parts) == 1 else JoinedDatasets(parts, paths)


def _all_paths(source: Sequence[Any]) -> bool:
    return all(isinstance(each, (str, os.PathLike)) for each in source)


READERS: Mapping[str, Callable[[Path, ReaderOptions], Dataset]] = {
    ".csv": _open_csv,
    ".tsv": _open_csv,
    ".jsonl": _open_json,
    ".ndjson": _open_json,
    ".parquet": _open_parquet,
    ".arrow": _open_arrow,
    ".feather": _open_arrow,
    ".npz": _open_npz,
    ".npy": _open_npy,
    ".txt": _open_text,
}
