"""Load a module by the name of its code or from a folder of Hugging Face, and its weights."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onward import python_code
from onward.checkpoints import tensor_files
from onward.errors import FileMissing, OptionError, UnsafeModel, WeightsError
from onward.graph.paths import check_exists, suggest_path
from onward.message_text import first_line, list_names, suggest_names
from onward.pytorch.huggingface_folder import load_folder

_HELD_IN = ("state_dict", "model_state_dict", "model")  # keys of checkpoints with more than weights


def load_module(
    source: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> nn.Module:
    """The module that `package.module:attribute` or `file.py:attribute` names, or a folder has.

    The attribute is a module, or a class or function that is called with the arguments. The code of
    the file is executed.
    """
    if Path(source).is_dir():
        return load_folder(Path(source))
    if not python_code.is_named(source):
        raise FileMissing(
            f"{source!r} is not a folder, and not a Python module\n"
            "write package.module:attribute or file.py:attribute, or the folder of a Hugging Face "
            f"model; {suggest_path(Path(source))}"
        )
    found = python_code.load_attribute(source)
    if not isinstance(found, nn.Module):
        found = _call(found, source, args, dict(kwargs or {}))
    if not isinstance(found, nn.Module):
        raise OptionError(
            f"{source} is {type(found).__name__}, not a torch.nn.Module\n"
            "name a module, or a class or a function that returns one"
        )
    return found


def _call(function: Any, source: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not callable(function):
        return function
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise OptionError(
            f"{source} cannot be made: {type(error).__name__}: {error}\n"
            "give its arguments: --args '[1, 2]' --kwargs '{\"hidden\": 8}'"
        ) from error


# -- weights -------------------------------------------------------------------------------------


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a state_dict into a module: .safetensors, or what torch.save wrote (only tensors)."""
    check_exists(path, "checkpoint")
    tensors = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    if tensors and all(name.startswith("module.") for name in tensors):  # saved under DDP
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    known = module.state_dict()
    for name, tensor in tensors.items():
        if name not in known:
            raise WeightsError(
                f"{path}: the module has no tensor {name!r}\n{suggest_names(name, known)}"
            )
        if tensor.shape != known[name].shape:
            raise WeightsError(
                f"{path}: {name!r} has shape {list(tensor.shape)}, the module "
                f"{list(known[name].shape)}\nmake the module with the sizes of the checkpoint: "
                "--args, --kwargs"
            )
    held = {id_of(known[name]) for name in tensors}
    missing = [name for name, tensor in known.items() if id_of(tensor) not in held]
    if missing:
        raise WeightsError(f"{path} has no values for {list_names(missing)} of the module")
    module.load_state_dict(tensors, strict=False)  # tied tensors may be there once


def id_of(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """What is equal for tied tensors: their memory; empty ones have none."""
    return (tensor.data_ptr() or id(tensor), tuple(tensor.shape))


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    return {name: _as_tensor(array) for name, array in tensor_files.read(path).tensors.items()}


def _as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _read_pickle(path: Path) -> dict[str, torch.Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeModel(
            f"{path} has more than tensors, and unpickling it may run any code\n"
            "save only the weights: torch.save(module.state_dict(), path)"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read: {first_line(error)}") from error
    for key in _HELD_IN:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    if not isinstance(found, Mapping) or not all(
        isinstance(t, torch.Tensor) for t in found.values()
    ):
        raise WeightsError(f"{path} is not a state_dict: tensors by name")
    return dict(found)
