"""What an explanation says, as plain values: submodules, programs, tensors."""

from __future__ import annotations

from dataclasses import dataclass

CAPTURED, IN_PYTORCH, NOT_CALLED = "captured", "PyTorch", "not called"


@dataclass(frozen=True, kw_only=True)
class SubmoduleRow:
    """A submodule: who runs it, and why."""

    path: str  # "" is the module itself
    kind: str  # the name of its class
    status: str  # CAPTURED, IN_PYTORCH or NOT_CALLED
    reason: str  # why PyTorch runs it; "" for submodules of one that PyTorch runs
    nodes: int  # captured, those of its submodules included
    parameters: int  # numbers in its parameters, those of its submodules included

    @property
    def depth(self) -> int:
        """
        >>> row = SubmoduleRow(path="a.b", kind="ReLU", status="captured", reason="", nodes=1,
        ...     parameters=0)
        >>> row.depth
        2
        """
        return self.path.count(".") + 1 if self.path else 0


@dataclass(frozen=True, kw_only=True)
class ProgramTensor:
    """An input or a result of a program, with its symbolic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    has_gradient: bool


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """How many nodes of an operator the graphs of a program have."""

    operator: str
    captured: int
    joint: int  # captured graph and gradients, before the engine's lowering
    forward: int
    backward: int


@dataclass(frozen=True, kw_only=True)
class FiredRewrite:
    """An operator that passes wrote in place of several: how often, and for which submodules."""

    operator: str
    count: int
    modules: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class TensorBytes:
    """A tensor that is held in memory."""

    name: str
    kind: str  # parameter, gradient, buffer, saved
    dtype: str
    shape: tuple[int, ...] | None  # None: the size is known only in a run
    bytes: int
    module: str  # the path of the submodule that it comes from
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """One captured program."""

    path: str  # the submodule that it runs
    engine: str
    inputs: tuple[ProgramTensor, ...]
    results: tuple[ProgramTensor, ...]
    changes: tuple[str, ...]  # buffers and inputs that a call changes
    guards: tuple[str, ...]  # conditions on the symbols of sizes
    parameters: int  # inputs that are parameters ...
    parameters_with_gradients: int  # ... and those that have gradients
    buffers: int
    nodes: dict[str, int]  # by graph: captured, joint, forward, backward
    operators: tuple[OperatorRow, ...]
    composites: tuple[FiredRewrite, ...]
    kept_composites: int  # those that the engine runs as one kernel
    fusions: tuple[FiredRewrite, ...]
    seconds: dict[str, float]  # capture, differentiate, compile
