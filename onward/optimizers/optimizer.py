"""Optimizer: the abstract class of optimizers: their settings and the graph of one update.

An optimizer is a frozen dataclass. `update` adds the nodes of one update with `op`; the learning
rate and the step are inputs, so that schedules need no new graph. Updates run in place: every node
that reads the old parameter (or slot) runs before the node that computes the new one, which is
elementwise (onward.optimizers.update_models checks it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from onward.errors import OptionError
from onward.optimizers.json_records import record
from onward.optimizers.scalars import plus, times
from onward.optimizers.stored_slots import StoredSlot
from onward.settings import check_fields, number

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.graph.graph_ops import GraphOps
    from onward.optimizers.scalars import Number

Shape: TypeAlias = Sequence[int | str]
Slots: TypeAlias = "dict[str, ir.Value]"


class Scalars(NamedTuple):
    """The scalar inputs of one update."""

    lr: ir.Value  # of the parameter's type
    step: ir.Value  # int64, 1 at the first update
    scale: ir.Value | None = None  # a factor of the gradient


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """An optimizer has a learning rate, slots (its state) and an update.

    `elementwise`: the formula treats each element separately, so that one flat vector may contain
    many parameters.

    Attributes:
        lr: the learning rate
    """

    lr: float = 1e-3

    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, lr=number())

    @abstractmethod
    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The names and shapes of the state of a parameter of this shape."""

    def initial(self, slot: str) -> float:
        """The value of a slot before the first update."""
        return 0.0

    def stored_slots(self) -> dict[str, StoredSlot]:
        """The slots that are stored in another type than their parameter's."""
        return {}

    @property
    def skips_zero_gradients(self) -> bool:
        """Whether elements whose gradient is 0, and their state, stay as they are."""
        return False

    @abstractmethod
    def update(
        self, op: GraphOps, p: ir.Value, g: ir.Value, slots: Slots, by: Scalars
    ) -> tuple[ir.Value, Slots]:
        """The new parameter and the new slots."""

    def to_dict(self) -> dict[str, Any]:
        """The optimizer as JSON; `onward.optimizers.optimizer_from_dict` reads it."""
        return record(self)


def check_optimizer(given: object, what: str = "the optimizer") -> None:
    """Refuse other objects, such as a class that was not called, or an optimizer of torch."""
    if isinstance(given, Optimizer):
        return
    hint = "for example: onward.optimizers.AdamW(lr=0.001)"
    if isinstance(given, type) and issubclass(given, Optimizer):
        hint = f"call it: {given.__name__}(lr=0.001)"
    raise OptionError(f"{what} must be one of onward.optimizers, not {given!r}\n{hint}")


def coefficient(op: GraphOps, scale: ir.Value | None, maximize: bool) -> Number:
    """c, where c g is the gradient to descend along: the scale, negative to maximise."""
    return times(op, 1.0 if scale is None else scale, -1.0 if maximize else 1.0)


def regularized(
    op: GraphOps, p: ir.Value, g: ir.Value, c: Number, weight_decay: float
) -> tuple[ir.Value, Number]:
    """(d, c') with c' d = c g + wd p: L2 regularisation, if there is one."""
    if not weight_decay:
        return g, c
    return plus(op, op.Mul(p, weight_decay), g, c), 1.0
