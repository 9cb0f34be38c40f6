"""Examples of a module's inputs from text: x=float32[batch,3,224,224], or from an .npz file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from onward.errors import DataError, OptionError
from onward.graph.paths import check_exists
from onward.message_text import suggest_names

_TYPES = {
    **{f"float{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"int{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_SPEC = re.compile(r"(?P<name>\w+)=(?P<type>\w+)\[(?P<sizes>[^\]]*)\]")
_SIZE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::(?P<example>\d+))?")
_SIZES = (2, 5, 7, 11, 13, 17)  # of named dimensions: different ones, so that none is confused


@dataclass(frozen=True)
class InputExamples:
    """Tensors by argument, and the names of their dynamic axes; None: the usual ones."""

    tensors: dict[str, torch.Tensor]
    dynamic: dict[str, dict[int, str]] | None = None


def read_inputs(texts: Sequence[str]) -> InputExamples:
    """Inputs from texts such as `x=float32[batch,3,64:h]`, or from one .npz file.

    A number is a fixed size, a name a dynamic one; `name:64` is a dynamic one with an example.

    >>> found = read_inputs(["ids=int64[batch,length:8]"])
    >>> found.tensors["ids"].shape, found.dynamic
    (torch.Size([2, 8]), {'ids': {0: 'batch', 1: 'length'}})
    """
    if len(texts) == 1 and texts[0].endswith(".npz"):
        return _read_npz(Path(texts[0]))
    sizes: dict[str, int] = {}
    tensors, dynamic = {}, {}
    generator = torch.Generator().manual_seed(0)
    for text in texts:
        match = _SPEC.fullmatch(text.replace(" ", ""))
        if match is None:
            raise OptionError(
                f"--inputs takes NAME=TYPE[SIZES], not {text!r}\n"
                "for example: x=float32[batch,3,224,224], or the path of an .npz file"
            )
        if match["type"] not in _TYPES:
            hint = suggest_names(match["type"], _TYPES)
            raise OptionError(f"{text}: there is no type {match['type']!r}\n{hint}")
        shape, names = _read_sizes(text, match["sizes"], sizes)
        tensors[match["name"]] = _example(match["name"], _TYPES[match["type"]], shape, generator)
        dynamic[match["name"]] = names
    return InputExamples(tensors, dynamic)


def check_names(module: nn.Module, given: Sequence[str]) -> None:
    """Refuse inputs that the module's forward does not take, and missing ones."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
        return
    names = [p.name for p in parameters]
    what = f"{type(module).__name__}.forward"
    for name in given:
        if name not in names:
            raise OptionError(f"{what} has no argument {name!r}\n{suggest_names(name, names)}")
    for p in parameters:
        if p.default is p.empty and p.name not in given:
            raise OptionError(
                f"{what} needs the argument {p.name!r}\nadd it: --inputs '{p.name}=float32[batch]'"
            )


def _read_sizes(text: str, given: str, known: dict[str, int]) -> tuple[list[int], dict[int, str]]:
    shape: list[int] = []
    names: dict[int, str] = {}
    for axis, size in enumerate(given.split(",") if given else ()):
        if size.isdecimal():
            shape.append(int(size))
            continue
        match = _SIZE.fullmatch(size)
        if match is None:
            raise OptionError(
                f"{text}: {size!r} is not a size\n"
                "write a number, a name (batch), or a name with an example (height:64)"
            )
        names[axis] = match["name"]
        default = known.get(match["name"], _SIZES[len(known) % len(_SIZES)])
        known[match["name"]] = int(match["example"] or default)
        shape.append(known[match["name"]])
    return shape, names


def _example(
    name: str, dtype: torch.dtype, shape: Sequence[int], generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    if "mask" in name:
        return torch.ones(*shape, dtype=dtype)
    return torch.randint(0, 2, tuple(shape), generator=generator).to(dtype)


def _read_npz(path: Path) -> InputExamples:
    check_exists(path, "file of examples")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except (ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error
    return InputExamples({name: torch.from_numpy(array) for name, array in arrays.items()})
