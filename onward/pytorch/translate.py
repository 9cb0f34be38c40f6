"""Translate a traced program to ONNX, all of its tensors as inputs and outputs.

torch.onnx.export writes parameters as initializers, drops the changes of buffers, and decomposes
operators a second time. This calls the same parts of it one by one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import onnx_ir as ir
import torch
from torch.export import graph_signature as signatures
from torch.onnx._internal.exporter import _core, _fx_passes, _registration

from onward.gradients.stop_gradient import mark_identities
from onward.message_text import first_line
from onward.passes.upgrade import upgrade_to
from onward.passes.value_facts import attribute, made_by
from onward.pytorch.aten_translations import TRANSLATIONS
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.layout_reads import check_as_strided
from onward.pytorch.reduction_translations import check_running_axes
from onward.pytorch.stopped_gradients import mark_in_trace

_NORMS = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"}
# what torch's exporter says of an operator: aten.linalg_matrix_exp, without ".default"
_LACKING = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_OPSET = 23  # the first with Attention


def translate(
    program: Any, hidden: Collection[str] = ()
) -> tuple[ir.Model, signatures.ExportGraphSignature]:
    """The ONNX model of a torch.export program, and the signature of its inputs and outputs.

    Tensors of the module are inputs, in the order of the signature; new values of buffers are
    outputs. Constants that the trace made are initializers, except for those that are `hidden`.
    """
    registry = _registry()
    _refuse_hidden_changes(program.graph_module)
    mark_in_trace(program.graph_module)
    program._example_inputs = None  # else guards are traced, too, which fails for some programs
    # in the caller's autocast mode, whose casts become nodes here
    try:
        with _kept_whole():
            functional = _fx_passes.decompose_with_registry(program, registry)
    except Exception as error:  # a size or a value that the trace does not know
        raise CannotCapture(_missing(error)) from error
    signature = functional.graph_signature
    functional._graph_signature = _all_user(signature)
    constants = {k: v for k, v in functional.constants.items() if k not in hidden}
    functional._state_dict, functional._constants = {}, {}
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):  # the casts of autocast are in the trace already
            stack.enter_context(torch.autocast(device, enabled=False))
        graph = functional.graph_module
        check_as_strided(graph)
        check_running_axes(graph)
        _replace_views(graph)
        try:
            _fx_passes.insert_type_promotion_nodes(graph)
            functional._graph_module = _fx_passes.remove_assertion_nodes(graph)
            model = _core._exported_program_to_onnx_program(functional, registry=registry).model
        except Exception as error:
            raise CannotCapture(_missing(error)) from error
    model.opset_imports[""] = _OPSET  # torch's exporter takes the version of the first node
    upgrade_to(model, _OPSET)  # its nodes have versions of their own, such as DFT of 17
    for function in model.functions.values():
        function.opset_imports[""] = _OPSET
    _keep_constants(model, signature, constants)
    mark_identities(model)
    _unify_norm_types(model)
    _type_batch_statistics(model)
    return model, signature


@functools.cache
def _registry() -> Any:
    registry = _registration.ONNXRegistry.from_torchlib(_OPSET)
    for target, function in TRANSLATIONS.items():
        registry.register_op(target, function)
    return registry


@contextmanager
def _kept_whole() -> Iterator[None]:
    """While entered, multi_margin_loss is not decomposed: its parts have other gradients."""
    operator: Any = torch.ops.aten.multi_margin_loss.default
    kernels = dict(operator.py_kernels)
    operator.py_kernels.pop(torch._C.DispatchKey.Autograd, None)
    operator._dispatch_cache.clear()
    try:
        yield
    finally:
        operator.py_kernels.update(kernels)
        operator._dispatch_cache.clear()


def _all_user(signature: signatures.ExportGraphSignature) -> signatures.ExportGraphSignature:
    """The signature with every tensor an input or an output of the user."""
    takes, gives = signatures.InputKind.USER_INPUT, signatures.OutputKind.USER_OUTPUT
    return signatures.ExportGraphSignature(
        [signatures.InputSpec(takes, spec.arg, None) for spec in signature.input_specs],
        [signatures.OutputSpec(gives, spec.arg, None) for spec in signature.output_specs],
    )


def is_made_by_trace(target: str) -> bool:
    """Whether a constant was made in the forward, and is not an attribute of the module.

    torch.export puts such a tensor into the submodule that made it, under a name of its own.

    >>> is_made_by_trace("module.norm.lifted_tensor_0"), is_made_by_trace("module.norm.scale")
    (True, False)
    """
    return not target.startswith("module.") or ".lifted_tensor_" in target


def _keep_constants(
    model: ir.Model, signature: signatures.ExportGraphSignature, constants: dict[str, Any]
) -> None:
    """Turn the inputs that are constants of the trace into initializers."""
    graph = model.graph
    for spec in signature.input_specs:
        target = str(spec.target)
        is_constant = spec.kind == signatures.InputKind.CONSTANT_TENSOR and target in constants
        if not is_constant or not is_made_by_trace(target):
            continue
        value = next(value for value in graph.inputs if value.name == spec.arg.name)
        tensor = constants[target]
        graph.inputs.remove(value)
        value.const_value = ir.tensor(tensor.detach().cpu().contiguous().numpy(), name=value.name)
        graph.register_initializer(value)


def _refuse_hidden_changes(module: Any) -> None:
    """Refuse operators that change buffers although their schema does not say so."""
    for node in module.graph.nodes:
        is_norm = node.target is torch.ops.aten.instance_norm.default
        if is_norm and node.args[3] is not None and node.args[5]:
            raise CannotCapture("nn.InstanceNorm with track_running_stats changes its buffers")


def _replace_views(module: Any) -> None:
    """Replace view by reshape: strides may differ when the trace is run again."""
    for each in module.modules():
        for node in each.graph.nodes:
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        each.recompile()


def _unify_norm_types(model: ir.Model) -> None:
    """Let norms compute in the type of their scale; autocast may pass them a 16-bit input.

    torch takes both types at once, ONNX does not.
    """
    for node in list(model.graph):
        if node.op_type not in _NORMS or len(node.inputs) < 2:
            continue
        x, scale, y = node.inputs[0], node.inputs[1], node.outputs[0]
        if x is None or scale is None or None in (x.dtype, scale.dtype) or x.dtype == scale.dtype:
            continue
        wide = ir.node("Cast", [x], {"to": int(scale.dtype or 1)})
        wide.outputs[0].type, wide.outputs[0].shape = scale.type, x.shape
        model.graph.insert_before(node, wide)
        node.replace_input_with(0, wide.outputs[0])
        narrow = ir.node("Cast", [y], {"to": int(x.dtype or 1)})
        result = narrow.outputs[0]
        result.type, result.shape = y.type, y.shape
        ir.convenience.replace_all_uses_with(y, result, replace_graph_outputs=True)
        narrow.replace_input_with(0, y)
        result.name, y.name, y.type = y.name, f"{y.name}/{scale.dtype}", scale.type
        model.graph.insert_after(node, narrow)


def _type_batch_statistics(model: ir.Model) -> None:
    """Give the statistics of a batch the type of the running ones, which ONNX computes them in.

    Those of torch on a CPU have the type of the input, which autocast makes 16 bits.
    """
    for node in model.graph:
        if node.op_type == "BatchNormalization" and attribute(node, "training_mode", 0):
            for given, found in zip(node.inputs[3:], node.outputs[1:]):
                copied = None if given is None else made_by(given, "CastLike")
                running = None if copied is None else copied.inputs[1]
                if running is not None and running.type is not None:
                    found.type = running.type


def _missing(error: Exception) -> str:
    """Why a translation failed, in one line."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lacking = _LACKING.search(str(cause))
    if lacking:
        return f"ONNX cannot express it: there is no translation of {lacking[1]}"
    return f"ONNX cannot express it: {first_line(cause)}"
