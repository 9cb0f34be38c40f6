"""Feeds from files: .npy, .npz, .json, ONNX's .pb, images; random ones for other inputs."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import FeedError
from onward.graph.dtypes import numpy_type
from onward.graph.paths import check_exists
from onward.graph.random_feeds import dynamic_names, random_feeds
from onward.graph.signature import NodeArg, check_feeds, to_array
from onward.lazy import LazyModule
from onward.message_text import format_sizes, list_names, suggest_names
from onward.sessions.image_feeds import SUFFIXES, Preparation, read_images

if TYPE_CHECKING:
    import onnx

    from onward.providers import model_sources
    from onward.sessions import inference, model_description
else:  # loaded when a model is read: completion in the shell must not wait for them
    onnx = LazyModule("onnx")
    model_description = LazyModule("onward.sessions.model_description")
    inference = LazyModule("onward.sessions.inference")
    model_sources = LazyModule("onward.providers.model_sources")

_FORMS = "a feeds file must be .npy, .npz, .json, .pb or an image"


def inputs_of(model: Path) -> list[Any]:
    """The inputs of a model's file; no weight is read."""
    if model.suffix == ".ort":  # only onnxruntime reads it
        return list(inference.InferenceSession(model).get_inputs())
    graph = model_sources.open_model(model).graph
    return [
        model_description.describe(value) for value in graph.inputs if not value.is_initializer()
    ]


def declared_inputs(model: Path) -> list[NodeArg] | None:
    """The inputs of a model's file, read from its protobuf: neither engine nor graph is loaded.

    None if the file is not a model or does not have them: opening the model reports why.
    """
    if model.suffix not in (".onnx", ""):
        return None
    try:
        graph = onnx.load_model(model, load_external_data=False).graph
    except Exception:  # protobuf's errors have no common name across its versions
        return None
    weights = {tensor.name for tensor in graph.initializer}
    found = [value for value in graph.input if value.name not in weights]
    if not all(value.type.HasField("tensor_type") for value in found):
        return None
    return [_declared(value) for value in found]


def _declared(value: Any) -> NodeArg:
    kind = value.type.tensor_type
    sizes = [
        size.dim_value if size.HasField("dim_value") else size.dim_param or None
        for size in kind.shape.dim
    ]
    word = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    return NodeArg(value.name, f"tensor({word})", sizes, is_ranked=kind.HasField("shape"))


def feeds_for(
    model: Path, paths: Sequence[str], sizes: Mapping[str, int], seed: int
) -> dict[str, Any]:
    """A feed for every input of a model's file: from files, and random for the others."""
    return read_feeds(inputs_of(model), paths, sizes, seed)


def read_feeds(
    inputs: Iterable[Any],
    paths: Sequence[str],
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    *,
    random: bool = True,
    preparation: Preparation | None = None,
    notes: list[str] | None = None,
) -> dict[str, Any]:
    """A feed for every input: from files, each "FILE" or "NAME=FILE", and random for the others.

    `inputs` are a session's `get_inputs()`; `sizes` fix dynamic dimensions. Random feeds take the
    size of a dynamic dimension from the files' tensors, too. Without `random`, an input that no
    file feeds is an error. `notes`, if given, gets a line for each decision that was made for
    the user.
    """
    inputs, sizes = list(inputs), dict(sizes or {})
    feeds = _read_files(inputs, paths, sizes, preparation or Preparation(), notes)
    rest = [arg for arg in inputs if arg.name not in feeds]
    if rest and not random:
        name, shape = rest[0].name, format_sizes(rest[0].shape)
        raise FeedError(
            f"input {name!r} is missing: {rest[0].type} of shape ({shape})\n"
            f"feed it with --feed {name}=FILE, or give --random"
        )
    still_open = names_of_sizes(rest)
    elsewhere = names_of_sizes(inputs) - still_open
    known = {name: size for name, size in _known_sizes(inputs, feeds).items() if name in still_open}
    wanted = {name: size for name, size in sizes.items() if name not in elsewhere}
    feeds.update(random_feeds(rest, {**known, **wanted}, seed))
    check_feeds(feeds, inputs, [])
    return {arg.name: feeds[arg.name] for arg in inputs}


def _read_files(
    inputs: Sequence[Any],
    paths: Sequence[str],
    sizes: Mapping[str, int],
    preparation: Preparation,
    notes: list[str] | None,
) -> dict[str, Any]:
    """The feeds that files give, by input."""
    feeds: dict[str, Any] = {}
    pictures: dict[str, list[Path]] = {}
    for name, path in (_split(text, inputs) for text in paths):
        if path.suffix.lower() in SUFFIXES:
            pictures.setdefault(name or _image_input(inputs, path), []).append(path)
            continue
        for key, feed in _read(path, name, inputs).items():
            if key in feeds:
                raise FeedError(f"input {key!r} is fed twice, the second time by {path}")
            feeds[key] = feed
    known = {arg.name: arg for arg in inputs}
    for name, files in pictures.items():
        if name in feeds:
            raise FeedError(f"input {name!r} is fed twice, the second time by {files[0]}")
        arg = known[name]
        feeds[name], note = read_images(files, arg, _dtype(arg, files[0]), sizes, preparation)
        if notes is not None:
            notes.append(note)
    for name, size in _known_sizes(inputs, feeds).items():
        if sizes.get(name, size) != size:
            raise FeedError(
                f"dimension {name!r} is {size} in the feeds, but {sizes[name]} by --size"
            )
    return feeds


def _split(text: str, inputs: Sequence[Any]) -> tuple[str | None, Path]:
    """The input and the file of NAME=FILE; names may hold = and :, files too."""
    for arg in sorted(inputs, key=lambda arg: -len(arg.name)):
        if text.startswith(f"{arg.name}="):
            return arg.name, Path(text[len(arg.name) + 1 :].removeprefix("@")).expanduser()
    path = Path(text.removeprefix("@")).expanduser()
    name, equals, _ = text.partition("=")
    if equals and not path.exists():
        known = (arg.name for arg in inputs)
        raise FeedError(f"no input {name!r}; {suggest_names(name, known, 'the model takes')}")
    return None, path


def _read(path: Path, name: str | None, inputs: Sequence[Any]) -> dict[str, Any]:
    """What a file feeds, by input."""
    suffix = path.suffix.lower()
    check_exists(path, "feeds file")
    if path.is_dir():
        raise FeedError(f"{path} is a folder\n{_FORMS}")
    if suffix == ".json":
        return _from_json(path, name, inputs)
    if suffix == ".pb":
        return _from_tensor(path, name, inputs)
    if suffix not in (".npy", ".npz"):
        raise FeedError(f"{path}: unknown kind of file\n{_FORMS}")
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {name or _only_input(inputs, path): loaded}
            arrays = {key: loaded[key] for key in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FeedError(f"{path} is not a numpy file of plain arrays: {error}") from error
    return _by_name(arrays, name, inputs, path)


def _by_name(
    given: dict[str, Any], name: str | None, inputs: Sequence[Any], path: Path
) -> dict[str, Any]:
    """Feeds of a file by their names; unnamed arrays of np.savez in the order of inputs."""
    if name is not None:
        if name not in given and len(given) != 1:
            raise FeedError(f"{path} has {len(given)} tensors, none of them called {name!r}")
        return {name: given.get(name, next(iter(given.values())))}
    numbered = [f"arr_{place}" for place in range(len(given))]
    if list(given) == numbered and len(given) <= len(inputs):
        return {arg.name: feed for arg, feed in zip(inputs, given.values())}
    known = [arg.name for arg in inputs]
    for key in given:
        if key not in known:
            raise FeedError(f"{path} feeds {key!r}; {suggest_names(key, known, 'the model takes')}")
    return given


def _from_json(path: Path, name: str | None, inputs: Sequence[Any]) -> dict[str, Any]:
    """{"input": nested lists}, or the nested lists of one input."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FeedError(f"{path} is not JSON: {error}") from error
    known = {arg.name: arg for arg in inputs}
    if not isinstance(value, dict):
        value = {name or _only_input(inputs, path): value}
    given = _by_name(value, name, inputs, path)
    return {key: _array(feed, known[key], path) for key, feed in given.items()}


def _array(value: Any, arg: Any, path: Path) -> Any:
    """Nested lists as an array of the declared type; numbers that it cannot hold are refused."""
    return to_array(value, _dtype(arg, path), f"{path}: input {arg.name!r} takes {arg.type}")


def _from_tensor(path: Path, name: str | None, inputs: Sequence[Any]) -> dict[str, Any]:
    """A TensorProto, as ONNX's own test data has them."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
        array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # protobuf's errors have no common name across its versions
        raise FeedError(f"{path} is not an ONNX tensor: {error}") from error
    known = [arg.name for arg in inputs]
    own = tensor.name if tensor.name in known else None
    return {name or own or _only_input(inputs, path): array}


def _dtype(arg: Any, path: Path) -> np.dtype[Any]:
    dtype = numpy_type(arg.type)
    if dtype is None or not arg.type.startswith("tensor("):
        raise FeedError(f"{path}: nothing but .npy, .npz and .pb can feed {arg.type}")
    return dtype


def _only_input(inputs: Sequence[Any], path: Path) -> str:
    if len(inputs) != 1:
        raise FeedError(
            f"{path} feeds one input, the model takes {_names(inputs)}\nname the input: NAME={path}"
        )
    return str(inputs[0].name)


def _image_input(inputs: Sequence[Any], path: Path) -> str:
    """The input that an image without a name is for."""
    fitting = [arg for arg in inputs if len(arg.shape) in (3, 4)] or list(inputs)
    return _only_input(fitting if len(fitting) == 1 else inputs, path)


def _known_sizes(inputs: Sequence[Any], feeds: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of dynamic dimensions, as the feeds have them."""
    known: dict[str, int] = {}
    for arg in inputs:
        shape = np.shape(feeds[arg.name]) if arg.name in feeds else ()
        for place, (symbol, size) in enumerate(zip(arg.shape or (), shape)):
            if not isinstance(symbol, int):
                known[f"{arg.name}:{place}"] = size
                known.setdefault(symbol or f"{arg.name}:{place}", size)
    return known


def names_of_sizes(inputs: Iterable[Any]) -> set[str]:
    """The names that `--size` takes for the dynamic dimensions of these inputs."""
    return dynamic_names((arg.name, arg.shape) for arg in inputs)


def _names(inputs: Iterable[Any]) -> str:
    return list_names(arg.name for arg in inputs)
