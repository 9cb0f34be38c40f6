"""Optimizer: settings, and the graph that turns a parameter and its gradient into the next one.

An optimizer is a frozen dataclass. `update` writes one update with the operators of `op`; the
learning rate and the step come in as values, so that schedules need no new graph. Updates are
bound in place: every node that reads the old parameter (or slot) comes before the node that makes
the new one, which is elementwise (onward.optimizers.update_models checks it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from onward.errors import OptionError
from onward.optimizers.json_records import record
from onward.optimizers.scalars import plus, times
from onward.settings import check_fields, number

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps
    from onward.optimizers.scalars import Number

Shape: TypeAlias = Sequence[int | str]
Slots: TypeAlias = "dict[str, ir.Value]"


class Scalars(NamedTuple):
    """What steers one update: numbers that come in as values of rank 0."""

    lr: ir.Value  # of the parameter's type
    step: ir.Value  # int64, 1 at the first update
    scale: ir.Value | None = None  # what the gradient is multiplied by


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """What every optimizer has: a learning rate, slots (its state) and an update.

    `elementwise` says that the formula looks at each number alone, so that one flat vector may
    hold many parameters.

    Attributes:
        lr: the learning rate
    """

    lr: float = 1e-3

    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, lr=number())

    @abstractmethod
    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The state that one parameter of this shape has: names and shapes."""

    def initial(self, slot: str) -> float:
        """What a slot holds before the first update."""
        return 0.0

    @abstractmethod
    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        """The new parameter and the new slots."""

    def to_dict(self) -> dict[str, Any]:
        """The optimizer as JSON; `onward.optimizers.optimizer_from_dict` reads it."""
        return record(self)


def check_optimizer(given: object, what: str = "the optimizer") -> None:
    """Refuse what is none of these, such as a class that was not called, or torch's."""
    if isinstance(given, Optimizer):
        return
    hint = "for example: onward.optimizers.AdamW(lr=0.001)"
    if isinstance(given, type) and issubclass(given, Optimizer):
        hint = f"call it: {given.__name__}(lr=0.001)"
    raise OptionError(f"{what} is one of onward.optimizers, not {given!r}\n{hint}")


def coefficient(op: GraphOps, scale: ir.Value | None, maximize: bool) -> Number:
    """c, where c g is the gradient to descend along: the scale, and -1 to climb."""
    return times(op, 1.0 if scale is None else scale, -1.0 if maximize else 1.0)


def regularized(
    op: GraphOps, p: ir.Value, g: ir.Value, c: Number, weight_decay: float
) -> tuple[ir.Value, Number]:
    """(d, c') with c' d = c g + wd p: L2 regularisation, where there is one."""
    if not weight_decay:
        return g, c
    return plus(op, op.Mul(p, weight_decay), g, c), 1.0
