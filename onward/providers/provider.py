"""The protocols of execution.

    Provider            compiles a model, or a part of one
    Executable          runs what a provider compiled
    Store               holds the tensors of a training run
    TrainingExecutable  runs a training program over the tensors of a store

A tensor that is passed between engines is whatever the engine holds (numpy array, torch.Tensor,
OrtValue): any object that supports DLPack, so that the next engine reads the same memory. A
sequence is a list, an empty optional is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:  # a device that trains a saved program has no onnx-ir
    import onnx_ir as ir

    from onward.optimizers.loss_scaling import DynamicLossScale


class Executable(Protocol):
    """A compiled part of a model."""

    @property
    def takes_numpy(self) -> bool:
        """Whether `run` takes numpy arrays only."""
        ...

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        """Compute the outputs from the inputs, both in the order of the part's graph."""
        ...

    def to_numpy(self, tensor: Any, dtype: Any) -> Any:
        """Convert a result of `run` to numpy."""
        ...


class Provider(Protocol):
    """An engine that runs some operators."""

    @property
    def name(self) -> str: ...

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether the engine runs this node: its operator, opset and types."""
        ...

    def compile(self, model: ir.Model) -> Executable:
        """Compile a part, given as a model; every node of it is supported."""
        ...


@runtime_checkable
class DLPackExecutable(Protocol):
    """An executable that can return its results on the device where they are."""

    def to_dlpack(self, tensor: Any) -> Any:
        """Convert a result of `run` to a DLPack tensor whose memory later runs do not reuse."""
        ...


@runtime_checkable
class WholeModelProvider(Protocol):
    """A provider that looks at the whole model before it is asked about single nodes."""

    def takes(self, model: ir.Model) -> bool:
        """Whether it compiles this model as one part."""
        ...


class Draw(NamedTuple):
    """The position in a training run that determines its random numbers."""

    seed: int
    step: int
    micro: int  # the number of the micro-batch in the step


class Store(Protocol):
    """The tensors of a training run, by name, in the memory of an engine.

    Names are those of checkpoints: parameters and statistics have their own, slots are
    `optimizer/{slot}/{parameter}`, accumulated gradients `gradients/{parameter}`.
    """

    def read(self, name: str) -> Any:
        """A tensor as a numpy array, which must not be written to."""
        ...

    def write(self, name: str, tensor: Any) -> None:
        """Replace the contents of a tensor by others of the same shape."""
        ...

    def gradient_buffers(self) -> list[Any]:
        """The accumulated gradients as flat vectors of the engine, to change in place.

        One for each update graph. They are sums over the micro-batches, times the loss scale.
        """
        ...

    def parameter_buffers(self) -> list[Any]:
        """The parameters as flat vectors of the engine, one for each update graph."""
        ...

    def gradient_buffer(self, update: int) -> Any:
        """The vector of one update among `gradient_buffers`."""
        ...

    def clear_gradients(self) -> None: ...


Results = Mapping[str, Any]  # the loss and other outputs of a graph, by name
Flag = Any  # true or false; on a GPU, reading it waits for the GPU


class TrainingExecutable(Protocol):
    """A training program on an engine, with the tensors that it trains.

    Methods that run a batch return None for an empty batch: nothing was run.
    """

    @property
    def store(self) -> Store: ...

    @property
    def lookahead(self) -> int:
        """How many updates' learning rates `set_rates` takes; 1: flags are known at once."""
        ...

    @property
    def finite(self) -> bool:
        """Whether the accumulated gradients are all finite; a checkpoint sets it."""
        ...

    @finite.setter
    def finite(self, finite: bool) -> None: ...

    def set_rates(self, steps: int, rates: Sequence[Sequence[float]]) -> None:
        """Set the number of updates made, and the next learning rates of each update graph."""
        ...

    def step(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float
    ) -> tuple[Results, Flag] | None:
        """Compute gradients, and update if all are finite. Returns results, and if all were."""
        ...

    def compute_gradients(
        self, feeds: Mapping[str, Any], draw: Draw, scale: float, first: bool
    ) -> Results | None:
        """Compute gradients and add them to the accumulated ones; the `first` replace those."""
        ...

    def forward(self, feeds: Mapping[str, Any], draw: Draw) -> Results | None:
        """Run the forward half of `compute_gradients`, and keep what `backward` needs."""
        ...

    def backward(self, scale: float, first: bool) -> None:
        """Run the backward half of `compute_gradients`."""
        ...

    def update(self, micro: int, scale: float) -> Flag:
        """Update with the gradients of `micro` micro-batches. Returns if they were finite."""
        ...

    def gradients_changed(self) -> None:
        """Tell the engine that its caller changed the accumulated gradients."""
        ...

    def gradient_norm(self) -> float:
        """The norm of the gradients of the last update, before clipping."""
        ...

    def evaluate(self, feeds: Mapping[str, Any]) -> Results:
        """The loss and the outputs, without gradients."""
        ...

    def predict(self, feeds: Mapping[str, Any]) -> Results:
        """The outputs of the model itself, without a loss."""
        ...


@runtime_checkable
class ScalingTraining(TrainingExecutable, Protocol):
    """A training program that can keep a dynamic loss scale with its tensors.

    Where it does, steps and updates do not look at the `scale` that they are given, and adjust
    their own by the rule, without the host.
    """

    def keep_scale(self, rule: DynamicLossScale, state: Mapping[str, float | int]) -> None:
        """Keep the scale from now on, starting from a state of the rule."""
        ...

    def scale_state(self) -> dict[str, float | int]:
        """The state after all updates so far; on a GPU, reading it waits for the GPU."""
        ...


class SegmentHooks(Protocol):
    """What is done between the segments of a step."""

    def before(self, segment: int) -> None:
        """A segment is about to run: those of the forward pass, then one for each update."""
        ...

    def scale(self) -> float:
        """The factor of the loss's gradient; asked for after the forward pass."""
        ...

    def after(self, update: int) -> None:
        """The accumulated gradients of an update are complete, while others are still computed."""
        ...


@runtime_checkable
class SegmentedTraining(TrainingExecutable, Protocol):
    """A training program that computes the gradients of one update after the other.

    `all_reduce` sums a vector of the engine over the processes, in place; it is set before the
    first batch.
    """

    all_reduce: Callable[[Any], None] | None

    def run_forward_segments(
        self, feeds: Mapping[str, Any], draw: Draw, first: bool, hooks: SegmentHooks
    ) -> Results | None:
        """The forward half of `compute_gradients`; the statistics are not kept.

        `first`: the memory of the accumulated gradients may be freed: others will replace them.
        """
        ...

    def run_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        """Compute gradients and add them as `compute_gradients` does; updates come in order.

        Whether gradients are finite is not looked at.
        """
        ...

    def skip_forward_segments(self, hooks: SegmentHooks) -> Results:
        """Take part in what others do for a batch that `run_forward_segments` found to be empty.

        Results are those of an empty batch.
        """
        ...

    def skip_backward_segments(self, first: bool, hooks: SegmentHooks) -> None:
        """The same for `run_backward_segments`; the `first` gradients are zeros."""
        ...

    def fresh_statistics(self) -> Sequence[Any]:
        """The statistics of the last batch, to be changed in place before they are kept."""
        ...

    def keep_statistics(self, finite: bool) -> None:
        """Keep the statistics of the last batch, unless updates that are not finite are skipped."""
        ...


class OwnPart(NamedTuple):
    """The part of an update's vectors that this process holds."""

    parameters: Any
    gradients: Any
    slots: Mapping[str, Any]  # slot -> vector; or slot -> parameter -> tensor if it is not flat


class PartStore(Store, Protocol):
    """A store with parts of vectors: of slots, and of gradients and parameters if they are sharded.

    `read` and `write` know the statistics, `gradient_buffers` are the own parts.
    """

    def own_part(self, update: int) -> OwnPart:
        """The part of this process; a view of the whole vector where that is held all the time."""
        ...

    def hold_parameters(self, update: int) -> Any:
        """The whole vector of an update's parameters, which graphs read until it is released."""
        ...

    def release_parameters(self, update: int) -> None:
        """Free the whole vector of parameters, if they are sharded."""
        ...

    def hold_gradients(self, update: int) -> Any:
        """The whole vector that the segment of an update writes its gradients to.

        Accumulated ones where gradients are not sharded; else those of one batch.
        """
        ...

    def release_gradients(self, update: int) -> None:
        """Free the whole vector of gradients, if they are sharded."""
        ...

    def hold_spare(self, update: int) -> Any:
        """A vector of the size of the own part, where whole vectors are, until it is released."""
        ...

    def release_spare(self, update: int) -> None: ...

    def bytes_held(self) -> Mapping[str, int]:
        """The bytes of parameters, gradients, slots, statistics, gathered and temporary vectors."""
        ...


@runtime_checkable
class ShardedTraining(SegmentedTraining, Protocol):
    """A training program whose store holds a part of each vector (ZeRO).

    Its caller fills the whole vectors of parameters before the segments that read them, reduces
    whole gradients into parts, and joins the updated parts.
    """

    @property
    def store(self) -> PartStore: ...

    def segment_reads(self, graph: str) -> Sequence[Sequence[int]]:
        """For each segment of "train", "evaluate" or "predict", the updates that it reads.

        Empty if parameters are not sharded: `evaluate` and `predict` then run as always.
        """
        ...

    def infer_segments(self, graph: str, feeds: Mapping[str, Any], hooks: SegmentHooks) -> Results:
        """`evaluate` or `predict` in segments; hooks are called for an empty batch, too."""
        ...

    def gradients_reduced(self, squares: float, finite: bool) -> None:
        """Set the sum of squares of all gradients in all processes, and whether all are finite."""
        ...
