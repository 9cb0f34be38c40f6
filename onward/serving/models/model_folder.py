"""Find models in a file or a folder: what Triton calls a model repository, and simpler layouts.

model.onnx                       one model, named after the file
folder/model.onnx                one model, named after the folder
folder/{a.onnx, b.onnx}          models a and b
folder/a/1/model.onnx            model a with its versions; a/config.pbtxt may describe it
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from onward.errors import InvalidModel, OnwardError, OptionError
from onward.graph.paths import check_exists
from onward.message_text import list_names
from onward.serving.models.config_pbtxt import read_config

SUFFIXES = (".onnx", ".ort")
CONFIG = "config.pbtxt"
_DATA = (".data", ".onnx_data", ".bin", ".weights")
_COMPANIONS = (CONFIG, "tokenizer.json", "preprocessor_config.json")


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's versions are. `problem` says why there are none."""

    name: str
    folder: Path  # with config.pbtxt, labels and Python functions, if there are any
    versions: Mapping[int, Path] = field(default_factory=dict)  # the model's file of each
    config: Mapping[str, Any] | None = None  # of config.pbtxt
    problem: str = ""
    is_file: bool = False  # the user named this file, not its folder


def find_models(path: Path) -> list[ModelFiles]:
    """The models of a file or folder, by name. A folder's broken models carry their problem."""
    check_exists(path, "model")
    return [_check_name(model) for model in _find_models(path)]


def _find_models(path: Path) -> list[ModelFiles]:
    if path.is_file():
        return [ModelFiles(path.stem, path.parent, {1: path}, is_file=True)]
    if _is_model(path):
        return [read_folder(path)]
    files = [each for each in _visible(path) if _is_model_file(each)]
    folders = [each for each in _visible(path) if os.path.isdir(each)]
    if len(files) == 1 and not any(map(_is_model, folders)):
        return [ModelFiles(_folder_name(path), path, {1: files[0]})]
    single = [ModelFiles(each.stem, path, {1: each}, is_file=True) for each in files]
    found = sorted([*single, *map(read_folder, folders)], key=lambda model: model.name)
    _refuse_twins(path, found)
    return found


def find_model(path: Path, name: str) -> ModelFiles | None:
    """One model of a file or folder as it is now; None if it is not there."""
    try:
        return next((model for model in find_models(path) if model.name == name), None)
    except OnwardError:
        return None


def read_folder(folder: Path) -> ModelFiles:
    """The model of a folder with versions, or with one model file."""
    name = _folder_name(folder)
    try:
        config = read_config(folder / CONFIG) if os.path.isfile(folder / CONFIG) else None
        return ModelFiles(name, folder, _versions(folder, config), config)
    except OnwardError as error:
        return ModelFiles(name, folder, problem=str(error).split("\n")[0])


def inner_name(name: Any, where: str) -> str:
    """The name of a file in a model's folder, as a configuration gives it."""
    text = str(name)
    path = PurePath(text)
    if path.is_absolute() or ".." in path.parts or "\0" in text:
        raise OptionError(
            f"{where} names the file {text!r}, which is not in the model's folder\n"
            "give its path below that folder"
        )
    return text


def fingerprint(model: ModelFiles, version: int) -> tuple[tuple[str, int, int, int], ...]:
    """Names, sizes and times of the files of a version: it changes when a file is replaced."""
    file = model.versions[version]
    around = file.parent
    if around == model.folder or model.is_file:
        stem = file.name.removesuffix(file.suffix)
        files = [each for each in _visible(around) if os.path.isfile(each) and _belongs(each, stem)]
        return _stamps(files, around) if around.is_dir() else ()
    own = [each for each in _visible(model.folder) if os.path.isfile(each)]
    return _stamps([*_walk(model.folder / str(version)), *own], model.folder)


def _versions(folder: Path, config: Mapping[str, Any] | None) -> dict[int, Path]:
    numbers = {int(each.name): each for each in _visible(folder) if _is_version(each)}
    wanted = inner_name((config or {}).get("default_model_filename") or "", CONFIG)
    if config and "ensemble_scheduling" in config:
        return {number: numbers[number] for number in sorted(numbers)} or {1: folder}
    if numbers:
        return {number: _model_file(numbers[number], wanted) for number in sorted(numbers)}
    files = [each for each in _visible(folder) if _is_model_file(each)]
    if len(files) == 1 or (files and wanted):
        return {1: _model_file(folder, wanted)}
    what = f"several model files ({list_names(f.name for f in files)})" if files else "no model"
    raise InvalidModel(f"{folder} has {what}: put one at {folder.name}/1/model.onnx")


def _model_file(folder: Path, wanted: str) -> Path:
    """The model's file in a version's folder; model.onnx may be a folder itself."""
    path = folder / (wanted or "model.onnx")
    if path.is_dir():
        path = path / (wanted or "model.onnx")
    if path.is_file():
        return path
    files = [each for each in _visible(folder) if _is_model_file(each)]
    if wanted:
        raise InvalidModel(f"{folder} has no {wanted}, which config.pbtxt names")
    if len(files) != 1:
        names = list_names(each.name for each in files)
        what = f"several model files ({names})" if files else "no model file (.onnx, .ort)"
        raise InvalidModel(f"{folder} has {what}: name one of them model.onnx")
    return files[0]


def _is_model(folder: Path) -> bool:
    """Whether a folder is that of one model: it has versions or a configuration."""
    return os.path.isfile(folder / CONFIG) or any(map(_is_version, _visible(folder)))


def _is_version(path: Path) -> bool:
    name = path.name
    return name.isascii() and name.isdigit() and name[0] != "0" and os.path.isdir(path)


def _is_model_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and os.path.isfile(path)


def _visible(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, sorted."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if not name.startswith((".", "__pycache__"))]


def _walk(folder: Path, seen: set[str] | None = None) -> list[Path]:
    """The files below a folder. Each folder is read once: links may lead round in circles."""
    seen = set() if seen is None else seen
    place = os.path.realpath(folder)
    if place in seen:
        return []
    seen.add(place)
    found = []
    for each in _visible(folder):
        found += _walk(each, seen) if os.path.isdir(each) else [each]
    return found


def _belongs(path: Path, stem: str) -> bool:
    """Whether a file next to a model's is part of it. Others, such as a log, change often."""
    return path.name.startswith(stem) or path.suffix in _DATA or path.name in _COMPANIONS


def _stamps(files: Iterable[Path], folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:  # removed while we look
            continue
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        found.append((str(path.relative_to(folder)), *stamp))
    return tuple(found)


def _folder_name(folder: Path) -> str:
    """The folder's own name, that of the link if it is one."""
    return Path(os.path.abspath(folder)).name or "model"


def _check_name(model: ModelFiles) -> ModelFiles:
    """A model whose name is text; any other cannot be asked for, nor shown in JSON."""
    try:
        model.name.encode()
    except UnicodeEncodeError:
        name = os.fsencode(model.name).decode("utf-8", "backslashreplace")
        problem = f"the name {name} is not UTF-8: rename the file or folder"
        return replace(model, name=name, versions={}, config=None, problem=problem)
    return model


def _refuse_twins(path: Path, found: list[ModelFiles]) -> None:
    names = [model.name for model in found]
    twin = next((name for name in names if names.count(name) > 1), None)
    if twin is not None:
        raise InvalidModel(f"{path} has two models named {twin!r}\nrename one of them")
