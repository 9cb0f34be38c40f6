"""Parameter groups: parameters with different optimizer settings, or frozen ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.optimizers.optimizer import Optimizer, check_optimizer
from onward.settings import check_fields, true_or_false

Predicate: TypeAlias = Callable[[str, tuple[int, ...]], bool]


@dataclass(frozen=True, init=False, repr=False)
class Group:
    """Parameters (names, glob patterns, or a predicate of name and shape) and their settings.

    Overrides are fields of the optimizer; `optimizer` is another optimizer; `frozen` parameters are
    not updated.

    Attributes:
        parameters: names, glob patterns, or a function of a name and a shape
        optimizer: another optimizer for these parameters; None: the session's
        frozen: do not update these parameters
        overrides: other values for fields of the optimizer, such as weight_decay=0.0

    >>> Group(parameters="*.bias", weight_decay=0.0)
    Group(parameters='*.bias', weight_decay=0.0)
    """

    parameters: str | Sequence[str] | Predicate
    optimizer: Optimizer | None
    frozen: bool
    overrides: Mapping[str, Any]

    def __init__(
        self,
        *,
        parameters: str | Sequence[str] | Predicate,
        optimizer: Optimizer | None = None,
        frozen: bool = False,
        **overrides: Any,
    ) -> None:
        given = {"optimizer": optimizer, "frozen": frozen, "overrides": overrides}
        for name, value in {"parameters": parameters, **given}.items():
            object.__setattr__(self, name, value)
        check_fields(self, frozen=true_or_false)
        if optimizer is not None:
            check_optimizer(optimizer, "Group.optimizer")
        if frozen and (optimizer is not None or overrides):
            raise OptionError(
                f"{self!r} is frozen: no optimizer updates it\nleave frozen, or the settings, out"
            )
        listed = [parameters] if isinstance(parameters, str) else parameters
        if callable(listed):
            return
        if not isinstance(listed, Sequence) or not listed or not _all_text(listed):
            raise OptionError(
                "the parameters of a Group must be names, patterns or a predicate, "
                f"not {parameters!r}\n"
                "give at least one name, such as '*.bias'"
            )

    def __repr__(self) -> str:
        settings = {"parameters": self.parameters, **self.overrides}
        settings |= {"optimizer": self.optimizer} if self.optimizer is not None else {}
        settings |= {"frozen": True} if self.frozen else {}
        return f"Group({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


class Assignment(NamedTuple):
    """An optimizer and the parameters that it updates; None: they are frozen."""

    optimizer: Optimizer | None
    names: list[str]


def resolve(
    optimizer: Optimizer, groups: Sequence[Group], parameters: Mapping[str, Sequence[int]]
) -> list[Assignment]:
    """Each parameter (name: shape) in the first group that matches it, or else with `optimizer`.

    >>> from onward.optimizers.sgd import SGD
    >>> shapes = {"a.weight": (2, 2), "a.bias": (2,), "b.weight": (2, 2)}
    >>> groups = [Group(parameters="b.*", frozen=True), Group(parameters="*.bias", lr=0.5)]
    >>> [(own and own.lr, names) for own, names in resolve(SGD(), groups, shapes)]
    [(None, ['b.weight']), (0.5, ['a.bias']), (0.001, ['a.weight'])]
    """
    check_optimizer(optimizer)
    left = {name: tuple(shape) for name, shape in parameters.items()}
    assignments = []
    for group in groups:
        if not isinstance(group, Group):
            raise OptionError(
                f"groups must be optimizers.Group, not {group!r}\n"
                "for example: [Group(parameters='*.bias', weight_decay=0.0)]"
            )
        matched = _matches(group, parameters)
        names = [name for name in left if name in matched]
        if matched and not names:
            raise OptionError(
                f"every parameter of {group!r} is in a group before it\n"
                "put it first, or leave it out: the first group that matches wins"
            )
        left = {name: shape for name, shape in left.items() if name not in matched}
        if names:
            assignments.append(Assignment(_optimizer_of(group, optimizer), names))
    if left:
        assignments.append(Assignment(optimizer, list(left)))
    for chosen, names in assignments:
        _check_shapes(chosen, names, parameters)
    return assignments


def _matches(group: Group, parameters: Mapping[str, Sequence[int]]) -> set[str]:
    """The names that a group matches; each pattern must match something."""
    wanted = group.parameters
    if callable(wanted):
        return {name for name, shape in parameters.items() if wanted(name, tuple(shape))}
    found: set[str] = set()
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        exact = {pattern} & set(parameters)
        names = exact or {name for name in parameters if fnmatchcase(name, pattern)}
        if not names:
            hint = suggest_names(pattern, parameters)
            raise OptionError(f"no parameter matches {pattern!r} of {group!r}\n{hint}")
        found |= names
    return found


def _optimizer_of(group: Group, optimizer: Optimizer) -> Optimizer | None:
    """The group's optimizer with its overrides; None: it is frozen."""
    if group.frozen:
        return None
    own = optimizer if group.optimizer is None else group.optimizer
    known = [field.name for field in fields(own)]
    for name in group.overrides:
        if name not in known:
            hint = suggest_names(name, known, "it has")
            raise OptionError(f"{type(own).__name__} has no setting {name!r} ({group!r})\n{hint}")
    return replace(own, **group.overrides)


def _check_shapes(
    optimizer: Optimizer | None, names: list[str], parameters: Mapping[str, Sequence[int]]
) -> None:
    """Compute the slots of each parameter: an optimizer refuses shapes that it cannot update."""
    for name in names if optimizer is not None else ():
        try:
            assert optimizer is not None
            optimizer.slots(tuple(parameters[name]))
        except OptionError as error:
            raise OptionError(f"parameter {name!r}: {error}") from None


def _all_text(listed: Sequence[object]) -> bool:
    return all(isinstance(each, str) for each in listed)
