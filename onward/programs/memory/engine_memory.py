"""EngineMemory: what an engine keeps of a train graph, where it is not every value as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class EngineMemory:
    """Values that take less memory on an engine than their size, and values that it must have.

    Attributes:
        most_bytes: by name; 0: never in memory, such as a mask that is drawn where it is read
        fixed: names of values that are not computed again, since a kernel of forward and backward
            reads them
        lower: rewrites a train graph to the one that the engine runs, where its values are others
        updates_rows: whether a step computes gradients only of the rows of sparse tables that the
            batch reads
    """

    most_bytes: Mapping[str, int] = field(default_factory=dict)
    fixed: Collection[str] = frozenset()
    lower: Callable[[ir.Model], ir.Model] | None = None
    updates_rows: bool = False


EVERY_VALUE = EngineMemory()  # an engine that keeps every value

FindEngineMemory = Callable[["ir.Model"], EngineMemory]  # of a train graph
