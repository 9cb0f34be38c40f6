"""Generate artifacts: the files that a device needs to train a model.

    generate_artifacts(model, requires_grad=["w", "b"], loss=LossType.CrossEntropyLoss,
                       optimizer=OptimType.AdamW, artifact_directory="artifacts")

writes training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint. The models are
plain ONNX: any stock onnxruntime runs them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.external import embedded, external_tensors, referenced
from onward.graph.files import load, save, weight_bytes
from onward.graph.paths import make_folder
from onward.losses.loss import Loss
from onward.optimizers.groups import Group
from onward.optimizers.optimizer import Optimizer
from onward.providers.ort.ort_format import write_ort_format
from onward.training.onnxblock import blocks, model_accessor, optim
from onward.training.onnxblock import loss as losses
from onward.training.onnxblock.blocks import Block
from onward.training.onnxblock.checkpoint_utils import write_checkpoint
from onward.training.onnxblock.onnxblock import TrainingBlock, to_ir
from onward.training.trained_parameters import trainable_weights, weight_names

StrPath: TypeAlias = "str | bytes | os.PathLike[str]"
ModelSource: TypeAlias = "onnx.ModelProto | ir.Model | str | os.PathLike[str] | bytes"

_EMBEDDED_AT_MOST = 1 << 30  # bytes of weights that are read into the proto

log = logging.getLogger("onward")


class LossType(Enum):
    """Named losses; any other is a block, or one of onward.losses."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Named optimizers; any other is a block, or one of onward.optimizers."""

    AdamW = 1
    SGD = 2


_LOSSES: dict[LossType, type[Block]] = {
    LossType.MSELoss: losses.MSELoss,
    LossType.CrossEntropyLoss: losses.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: losses.BCEWithLogitsLoss,
    LossType.L1Loss: losses.L1Loss,
}


def generate_artifacts(
    model: ModelSource,
    requires_grad: Collection[str] | None = None,
    frozen_params: Collection[str] | None = None,
    loss: LossType | Block | Loss | None = None,
    optimizer: OptimType | Block | Optimizer | None = None,
    artifact_directory: StrPath | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: StrPath | None = None,
    additional_output_names: list[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: list[str] | None = None,
    *,
    groups: Sequence[Group] = (),
    tied: Sequence[Sequence[str]] | None = None,
) -> None:
    """Write the training model, the eval model, the optimizer model and the checkpoint.

    model: a model, or the path of one, which may be of any size.
    requires_grad: the parameters to train; None: those that a TrainingSession would train, and
        that are not frozen.
    frozen_params: parameters that come with the checkpoint and are not trained.
    loss: a LossType, a block, or a loss of onward.losses; None: the model's first output.
    optimizer: an OptimType, a block, or one of onward.optimizers; None: no optimizer model.
    artifact_directory: created if it does not exist; None: the current folder.
    prefix: put in front of each file's name.
    ort_format: write each model in onnxruntime's own format as well.
    custom_op_library: the library of the model's custom operators.
    additional_output_names: outputs in addition to the loss.
    nominal_checkpoint: write one more checkpoint, of names without data.
    loss_input_names: what the loss is called with; None: all outputs of the model.
    groups: parameters with other optimizer settings (onward.optimizers.Group).
    tied: groups of weights that are one parameter each; None: as the model ties them.
    """
    loss_block, optimizer_block = _loss_block(loss), _optimizer_block(optimizer, groups)
    _check_disjoint(requires_grad, frozen_params)
    message, path = _to_proto(model)
    block = _ArtifactBlock(loss_block, loss_input_names, additional_output_names)
    for name in requires_grad or ():
        block.requires_grad(name)
    for name in frozen_params or ():
        block.requires_grad(name, False)
    block.train_all = requires_grad is None
    block.tied = tied
    block.clips = isinstance(optimizer_block, optim.OptimizerBlock) and (
        optimizer_block.clips_by_norm
    )
    library = None if custom_op_library is None else os.fsdecode(custom_op_library)
    with model_accessor.base(message, path) as base, _custom_op_library(library):
        opset = base.opset
        block(*(output.name for output in message.graph.output))
    training, evaluation = block.to_graphs()
    models = {"training_model": training, "eval_model": evaluation}
    if optimizer_block is not None:
        with model_accessor.empty_base(opset or None) as accessor:
            optimizer_block(block.parameters())
            models["optimizer_model"] = ir.from_proto(accessor.model)

    folder = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))
    start = str(folder / f"{prefix or ''}x")[:-1]  # a prefix may name a folder
    make_folder(Path(f"{start}x").parent)
    for name, made in models.items():
        save(made, f"{start}{name}.onnx")
        if ort_format:
            libraries = [] if library is None else [library]
            write_ort_format(f"{start}{name}.onnx", f"{start}{name}.ort", libraries)
    write_checkpoint(*block.arrays(), f"{start}checkpoint", nominal=False)
    if nominal_checkpoint:
        write_checkpoint(*block.arrays(), f"{start}nominal_checkpoint", nominal=True)
    log.info("artifacts written to %s", folder)


class _ArtifactBlock(TrainingBlock):
    """A loss on top of a model, with additional outputs."""

    train_all = False  # whether to train all weights that a session would train

    def __init__(
        self,
        loss: Block,
        loss_input_names: Sequence[str] | None,
        additional_output_names: list[str] | None,
    ) -> None:
        super().__init__()
        self._loss, self._inputs, self._others = loss, loss_input_names, additional_output_names
        if additional_output_names and not isinstance(additional_output_names, list):
            raise RuntimeError(
                "Unknown type provided for additional output names "
                f"{type(additional_output_names)}. Expected additional output names to be a list "
                "of strings."
            )

    def build(self, *output_names: str) -> tuple[str, ...]:
        accessor = model_accessor.current()
        model = to_ir(accessor.model, accessor.folder)
        own = weight_names(model, self.tied) if self.train_all else []
        own = [
            name for name in own if name not in self._requested()
        ]  # without frozen ones, and before the loss adds its own
        read = self._inputs or output_names
        if len(read) > 2 and type(self._loss) in _LOSSES.values():
            raise RuntimeError(
                f"{type(self._loss).__name__} reads one output, and a target that may be another, "
                f"not {len(read)}: {', '.join(read)}\nName the output that it reads: "
                f"loss_input_names=[{read[0]!r}]."
            )
        found = self._loss(*read)
        names = (found,) if isinstance(found, str) else tuple(found)
        if self.train_all:
            model = to_ir(accessor.model, accessor.folder)
            for name in trainable_weights(model, names[0], own, self.tied):
                self.requires_grad(name)
        return (*names, *(self._others or ()))


def _loss_block(loss: Any) -> Block:
    if loss is None:
        return blocks.PassThrough()
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if isinstance(loss, Block):
        return loss
    if callable(getattr(loss, "build", None)) and not isinstance(loss, type):
        return losses.LossBlock(loss)
    raise RuntimeError(
        f"Unknown loss provided {type(loss)}. Expected loss to be either one of "
        "onward.training.artifacts.LossType or onward.training.onnxblock.Block.\n"
        "A loss of onward.losses works, too."
    )


def _optimizer_block(optimizer: Any, groups: Sequence[Group]) -> Block | None:
    if groups and not isinstance(optimizer, Optimizer):
        raise OptionError(
            f"groups need an optimizer of onward.optimizers, not {optimizer!r}\n"
            'such as onward.optimizers.AdamW(style="transformers"), the same as OptimType.AdamW'
        )
    if optimizer is None or isinstance(optimizer, Block):
        return optimizer
    if isinstance(optimizer, OptimType):
        return optim.AdamW() if optimizer is OptimType.AdamW else optim.SGD()
    if isinstance(optimizer, Optimizer):
        return optim.OptimizerBlock(optimizer, groups=groups)
    raise TypeError(
        f"Unknown optimizer provided {type(optimizer)}. Expected optimizer to be either one of "
        "onward.training.artifacts.OptimType or onward.training.onnxblock.Block.\n"
        "An optimizer of onward.optimizers works, too."
    )


def _check_disjoint(requires_grad: Collection[str] | None, frozen: Collection[str] | None) -> None:
    both = set(requires_grad or ()) & set(frozen or ())
    if both:
        raise RuntimeError(
            "A parameter cannot be frozen and require gradient computation at the same time "
            f"{both}\nLeave it out of frozen_params or of requires_grad."
        )


def _custom_op_library(path: str | None) -> contextlib.AbstractContextManager[Any]:
    if path is None:
        return contextlib.nullcontext()
    return model_accessor.custom_op_library(path)


def _to_proto(model: ModelSource) -> tuple[onnx.ModelProto, Path | None]:
    """The model as a proto, and its path if its weights stay in external files."""
    if isinstance(model, onnx.ModelProto):
        return model, None
    if not isinstance(model, (str, os.PathLike, bytes, ir.Model)):
        raise RuntimeError(
            "Please pass in either a string or an ONNX ModelProto for the model, "
            f"not {type(model)}."
        )
    graph = load(model, any_domain=True)
    if weight_bytes(graph) <= _EMBEDDED_AT_MOST:
        with embedded(graph):
            return ir.to_proto(graph), None
    with referenced(graph):
        outside = external_tensors(graph)
        proto = ir.to_proto(graph)
    if isinstance(model, (str, os.PathLike)):
        return proto, Path(model)
    return proto, Path(outside[0].base_dir) / "model.onnx" if outside else None
