"""The seams of execution: a Provider compiles a part of a model, an Executable runs it; a
TrainingExecutable runs a training program over the tensors of a Store.

A tensor that crosses this seam is whatever the engine holds (numpy array, torch.Tensor, OrtValue):
anything that speaks DLPack, so that the next engine reads the same memory. Sequences are lists and
an empty optional is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # a device that trains a saved program has no onnx-ir
    import onnx_ir as ir


class Executable(Protocol):
    """A compiled part: tensors in the order of its inputs, tensors in the order of its outputs."""

    @property
    def takes_numpy(self) -> bool:
        """Whether its tensors must come as numpy, because its engine knows no other."""
        ...

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]: ...

    def to_numpy(self, tensor: Any, dtype: Any) -> Any:
        """One of its results as numpy."""
        ...


class Provider(Protocol):
    """An engine that can run some operators."""

    @property
    def name(self) -> str: ...

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether this engine can run the node: its operator, opset and types."""
        ...

    def compile(self, model: ir.Model) -> Executable:
        """Make a part, as a model of its own, ready to run."""
        ...


@runtime_checkable
class KeepsOnDevice(Protocol):
    """An executable that can leave its results with the caller, on the device they are on."""

    def to_dlpack(self, tensor: Any) -> Any:
        """One of its results as a tensor that speaks DLPack and that later runs leave alone."""
        ...


@runtime_checkable
class TakesWhole(Protocol):
    """A provider that is shown the whole model before it is asked about each node."""

    def takes(self, model: ir.Model) -> bool:
        """Whether it will compile all of this model as one part."""
        ...


class Draw(NamedTuple):
    """Where in a run random numbers are drawn: they are a function of these alone."""

    seed: int
    step: int
    micro: int  # which micro-batch of the step


class Store(Protocol):
    """The tensors of a training run, by name, in the memory of an engine.

    Names are those of checkpoints: parameters and statistics have their own, slots are
    `optimizer/{slot}/{parameter}`, gradients that await an update `gradients/{parameter}`.
    """

    def read(self, name: str) -> Any:
        """A tensor as a numpy array, which is not to be written to."""
        ...

    def write(self, name: str, tensor: Any) -> None:
        """Give a tensor new contents, of the same shape."""
        ...

    def gradient_buffers(self) -> list[Any]:
        """The gradients that await an update as the engine's own flat vectors, to work on in place.

        One for each update graph. They are sums over the micro-batches, times the loss scale.
        """
        ...

    def clear_gradients(self) -> None: ...


Results = Mapping[str, Any]  # the loss and other outputs of a graph, by name
Flag = Any  # something that is true or false; on a GPU, to look at it waits for the GPU


class TrainingExecutable(Protocol):
    """A training program on an engine, and the tensors that it trains.

    What runs a batch returns None where the batch is empty: then nothing was run.
    """

    @property
    def store(self) -> Store: ...

    @property
    def lookahead(self) -> int:
        """For how many updates it takes learning rates in advance; 1: flags are known at once."""
        ...

    @property
    def finite(self) -> bool:
        """Whether the gradients that await an update are all finite; a checkpoint sets it."""
        ...

    @finite.setter
    def finite(self, finite: bool) -> None: ...

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        """So many updates were made; the learning rates of the next ones, for each update graph."""
        ...

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[Results, Flag] | None:
        """Gradients, and the update if all is finite: results, and whether all was."""
        ...

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        """Gradients, added to those that await an update unless they are the `first`."""
        ...

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        """The first half of `compute_gradients`; the other half needs what it keeps."""
        ...

    def backward(self, scale: float, first: bool) -> None: ...

    def update(self, micro: int, scale: float) -> Flag:
        """Update with the gradients of so many micro-batches; whether they are finite."""
        ...

    def gradients_changed(self) -> None:
        """Someone else has changed the gradients since they were computed."""
        ...

    def gradient_norm(self) -> float:
        """The norm of the gradients of the last update, before clipping."""
        ...

    def evaluate(self, feeds: Mapping[str, Any]) -> Results: ...

    def predict(self, feeds: Mapping[str, Any]) -> Results: ...
