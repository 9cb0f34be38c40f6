"""export_gradient_graph: a module, its loss and its gradients as one ONNX model."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from onward.errors import PackageMissing, UnsupportedModel
from onward.gradients.model import gradient
from onward.gradients.stop_gradient import mark_identities
from onward.graph.files import save
from onward.lazy import LazyModule
from onward.message_text import first_line

# They import onnxscript, which may be missing
_aten = LazyModule("onward.pytorch.aten_translations")
_stopped = LazyModule("onward.pytorch.stopped_gradients")
_EMBEDDING = torch.ops.aten.embedding.default

_BATCH_NORMS = [  # which torch's exporter writes as in inference
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_functional,
]


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: Tensor,
    example_labels: Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int | None = None,
) -> None:
    """Write an ONNX model that computes a module's output, its loss and its gradients.

    Inputs are `input`, `labels` and the parameters by their names; outputs are `output`, `loss` and
    `{name}_grad` for each parameter that requires a gradient. The first axis of input, labels and
    output is the batch, of any size. The module is exported in the mode it is in, training or
    evaluation; changes of its buffers are left out. The graph is of standard operators, in the
    oldest opset that has them; a warning says if that is newer than `opset_version`.

    >>> import tempfile, onward
    >>> path = tempfile.mkdtemp() + "/gradients.onnx"
    >>> loss = torch.nn.functional.mse_loss
    >>> export_gradient_graph(torch.nn.Linear(2, 1), loss, torch.ones(4, 2), torch.ones(4, 1), path)
    >>> [output.name for output in onward.load(path).graph.outputs]
    ['output', 'loss', 'weight_grad', 'bias_grad']
    """
    if importlib.util.find_spec("onnxscript") is None:  # torch's exporter imports it
        raise PackageMissing(
            "onnxscript, which translates modules to ONNX, is not installed\n"
            "install it with: pip install onward[torch]"
        )
    exported = _export(model, loss_fn, example_input.detach(), example_labels.detach())
    wrt = [name for name, p in model.named_parameters() if p.requires_grad]
    graph = gradient(exported, "loss", wrt)
    opset = graph.opset_imports[""]
    if opset_version is not None and opset > opset_version:
        warnings.warn(
            f"the gradient graph needs opset {opset}, which is newer than {opset_version}",
            UserWarning,
            stacklevel=2,
        )
    save(graph, gradient_graph_path)


class _OutputAndLoss(torch.nn.Module):
    """A module's output and its loss as a function of its input, labels and parameters."""

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.parts = (model, loss_fn)  # in a tuple, so that its parameters are not this module's
        self.names = [name for name, _ in model.named_parameters()]

    def forward(self, input: Tensor, labels: Tensor, *parameters: Tensor) -> tuple[Any, Any]:
        model, loss_fn = self.parts
        tensors = dict(zip(self.names, parameters))
        tensors |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        output = torch.func.functional_call(model, tensors, (input,))
        return output, loss_fn(output, labels)


def _export(
    model: torch.nn.Module, loss_fn: Callable[[Any, Any], Any], example: Tensor, labels: Tensor
) -> ir.Model:
    wrapped = _OutputAndLoss(model, loss_fn)
    batched = example.dim() > 0 and labels.dim() > 0 and len(example) == len(labels)
    if batched and len(example) == 1:  # torch.export takes a size of 1 for a constant
        example, labels = torch.cat([example, example]), torch.cat([labels, labels])
    axis = {0: torch.export.Dim.AUTO} if batched else None
    parameters = tuple(p.detach() for p in model.parameters())
    shapes = {"input": axis, "labels": axis, "parameters": tuple(None for _ in parameters)}
    with warnings.catch_warnings():  # of torch about its own code
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(
                wrapped, (example, labels, *parameters), dynamic_shapes=shapes, strict=False
            )
            table: Any = torch.export.default_decompositions()
            table.update(torch._decomp.get_decompositions(_BATCH_NORMS))
            _stopped.mark_in_trace(program.graph_module)
            exported = torch.onnx.export(
                program.run_decompositions(table),
                dynamo=True,
                optimize=False,  # it would merge equal constants and fold
                verbose=False,
                input_names=["input", "labels", *wrapped.names],
                output_names=["output", "loss"],
                custom_translation_table={
                    _stopped.STOP_GRADIENT: _stopped.stop_gradient,
                    _EMBEDDING: _aten.TRANSLATIONS[_EMBEDDING],
                },
            )
        except Exception as error:  # torch raises many kinds
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be exported by torch: {first_line(error)}\n"
                "torch.export.export(model, (example_input,), strict=False) shows where"
            ) from error
    assert exported is not None
    found: ir.Model = exported.model
    mark_identities(found)
    return found
