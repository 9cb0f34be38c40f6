"""PythonState: what a forward may change in Python, and a captured graph would not.

Attributes of the module, of its submodules and of their classes; lists, dictionaries and objects
in these; globals of the forward's file; generators of random numbers other than torch's.
"""

from __future__ import annotations

import enum
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from onward.pytorch.changing_items import (
    ABSENT,
    CONSTANTS,
    SEQUENCES,
    ChangingItem,
    ChangingItems,
    Initializes,
    is_made_of_tensors,
    is_same,
    write_item,
)
from onward.pytorch.fallback import CannotCapture

_OPAQUE = (*CONSTANTS, type, torch.Tensor, np.ndarray, enum.Enum, FunctionType, ModuleType)
# no classes derived from them, which may compute their items
_CONTAINERS = {*SEQUENCES, dict, OrderedDict, defaultdict, Counter}
_LIBRARIES = {"torch", "numpy", "onward"}  # what they keep in objects does not change results
# torch's recurrent layers list their parameters again; hooks of transformers stay, with their flag
_KEPT = {"_flat_weights", "_flat_weight_refs", "_output_capturing_hooks_installed"}
_OF_MODULE = ({*vars(nn.Module())} | _KEPT) - {"training"}
_DEPTH = 4  # of containers in containers: a Lightning module leads to its trainer


class PythonState:
    """A snapshot; `check` refuses a forward that changed something, `restore` takes it back."""

    def __init__(self, module: nn.Module) -> None:
        self._places: dict[int, _Place] = {}
        self._draws: list[_Draws] = [_Python(random), _Numpy(np.random)]
        for path, each in module.named_modules():
            self._add("its attribute", path, each, _DEPTH)
            for kind in type(each).__mro__:
                if issubclass(kind, nn.Module) and not _is_of_library(kind):
                    self._add("its attribute", kind.__name__, kind, 1)
                    scope = getattr(vars(kind).get("forward"), "__globals__", None)
                    if scope is not None:
                        self._add("the global", "", scope, 1)

    def _add(self, what: str, path: str, held: Any, depth: int) -> None:
        """Add an object or a container, and those in it."""
        if id(held) in self._places:
            return
        place = self._places[id(held)] = _Place(what, path, held)
        for name, value in place.before.items() if depth else ():
            if isinstance(value, random.Random):
                self._draws.append(_Python(value))
            elif isinstance(value, np.random.RandomState):
                self._draws.append(_Numpy(value))
            elif isinstance(value, np.random.Generator):
                self._draws.append(_NumpyGenerator(value))
            elif type(value) in _CONTAINERS or (depth > 1 and _is_of_user(value)):
                self._add(what, place.path_of(name), value, depth - 1)

    def check(self, changing: ChangingItems | None = None) -> dict[ChangingItem, Any]:
        """The attributes that each call sets to tensors; refuse a forward with other changes.

        `changing` are the items that earlier calls have changed. None: an export, which has no side
        effects: only what would change the results of later calls is refused.
        """
        if any(draws.has_moved() for draws in self._draws):
            raise CannotCapture("it draws random numbers in Python: draw them in torch")
        changes = [each for place in self._places.values() for each in place.changes()]
        if changing is None:
            changes = [each for each in changes if each.is_of_constants]
        elif all(each.item.key in changing and each.is_result for each in changes):
            return {changing[each.item.key]: each.after for each in changes}
        if changes:
            change = min(changes, key=lambda each: each.is_first)
            what = "a buffer" if isinstance(change.after, CONSTANTS) else "a result"
            text = f"it changes {change.item.where} in every call: make it {what}"
            raise Initializes(text, [each.item for each in changes])
        return {}

    def tensors(self) -> Iterator[ChangingItem]:
        """The items and attributes that are tensors."""
        for place in self._places.values():
            yield from place.tensors()

    def restore(self) -> None:
        """Take back all changes."""
        for draws in self._draws:
            draws.restore()
        for place in self._places.values():
            place.restore()


@dataclass(frozen=True)
class _Change:
    """What a forward changed."""

    item: ChangingItem
    before: Any
    after: Any
    is_first: bool  # whether it had no value before

    @property
    def is_result(self) -> bool:
        """Whether it is an attribute of a module that is, or contains, tensors."""
        return isinstance(self.item.held, nn.Module) and is_made_of_tensors(self.after)

    @property
    def is_of_constants(self) -> bool:
        return isinstance(self.before, CONSTANTS) and isinstance(self.after, CONSTANTS)


class _Place:
    """A container, or the attributes of an object, and what it held."""

    def __init__(self, what: str, path: str, held: Any) -> None:
        self._what, self._path, self._held = what, path, held
        self.before = _read(held)

    def path_of(self, name: Any) -> str:
        if isinstance(self._held, SEQUENCES):
            return self._path
        return f"{self._path}.{name}" if self._path else str(name)

    def tensors(self) -> Iterator[ChangingItem]:
        for name, value in self.before.items():
            if isinstance(value, torch.Tensor):
                yield ChangingItem(self._held, name, self.path_of(name))

    def changes(self) -> Iterator[_Change]:
        """The values that differ now."""
        grows = not isinstance(self._held, SEQUENCES)
        for name, before, after in self._differences():
            is_first = grows and (before is None or before is ABSENT)
            where = f"{self._what} {self.path_of(name)}"
            item = ChangingItem(self._held, name if grows else None, where)
            yield _Change(item, before, after, is_first)

    def _differences(self) -> list[tuple[Any, Any, Any]]:
        after = _read(self._held)
        names = dict.fromkeys([*self.before, *after])
        pairs = [(n, self.before.get(n, ABSENT), after.get(n, ABSENT)) for n in names]
        return [each for each in pairs if not is_same(*each[1:])]

    def restore(self) -> None:
        differences = self._differences()
        if not differences:
            return
        if isinstance(self._held, set):
            self._held.clear()
            self._held.update(self.before)
        elif isinstance(self._held, (list, deque)):
            self._held.clear()
            self._held.extend(self.before.values())
        else:
            for name, before, _ in differences:
                write_item(self._held, name, before)


def _read(held: Any) -> dict[Any, Any]:
    """The items of a container, or the attributes of an object, by name."""
    if isinstance(held, (list, deque)):
        return dict(enumerate(held))
    if isinstance(held, set):
        return dict.fromkeys(held, True)
    found: Mapping[Any, Any] = held if isinstance(held, dict) else vars(held)
    left_out = _OF_MODULE if isinstance(held, nn.Module) else ()
    names = [n for n in found if n not in left_out and not str(n).startswith("__")]
    return {name: found[name] for name in names}


def _is_of_user(value: Any) -> bool:
    """Whether a value is an object with attributes, of a class outside of the libraries."""
    return (
        not isinstance(value, (*_OPAQUE, nn.Module, dict, *SEQUENCES))
        and hasattr(value, "__dict__")
        and not _is_of_library(type(value))
    )


def _is_of_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _LIBRARIES


# -- random numbers -------------------------------------------------------------------------------


class _Draws(Protocol):
    """The state of a generator of random numbers."""

    def has_moved(self) -> bool: ...

    def restore(self) -> None: ...


class _Python:
    def __init__(self, generator: Any) -> None:
        self._generator, self._before = generator, generator.getstate()

    def has_moved(self) -> bool:
        return bool(self._generator.getstate() != self._before)

    def restore(self) -> None:
        if self.has_moved():
            self._generator.setstate(self._before)


class _Numpy:
    def __init__(self, generator: Any) -> None:
        self._generator, self._before = generator, generator.get_state(legacy=False)

    def has_moved(self) -> bool:
        return repr(_plain(self._generator.get_state(legacy=False))) != repr(_plain(self._before))

    def restore(self) -> None:
        self._generator.set_state(self._before)


class _NumpyGenerator:
    def __init__(self, generator: np.random.Generator) -> None:
        self._bits, self._before = generator.bit_generator, generator.bit_generator.state

    def has_moved(self) -> bool:
        return repr(_plain(self._bits.state)) != repr(_plain(self._before))

    def restore(self) -> None:
        self._bits.state = self._before


def _plain(state: Any) -> Any:
    """A state with its arrays as bytes, which compare."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state
