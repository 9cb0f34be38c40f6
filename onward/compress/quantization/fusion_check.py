"""Find the nodes of a plan that the engine runs in float, with conversions around them.

onnxruntime replaces DequantizeLinear, operator, QuantizeLinear by one integer kernel where it has
one. Where it has none, it runs the float operator and the conversions: slower than without them.
Weights that are only stored in 16 bits are widened when a model is loaded, or in each run. The
optimised graph of a session shows which.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Iterator, MutableMapping
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.compress.quantization.quantization_plan import Plan, Quantizer
from onward.errors import ProviderError
from onward.graph.files import weight_bytes
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_ROUNDS = 8  # taking a node out may leave a neighbour that no longer fuses
_LARGE = 1 << 30  # bytes of weights; the optimised graph of such a model is not written
_SUFFIX = re.compile(r"(_token_\d+|_nhwc|_nchwc)+$")  # what onnxruntime appends to a node's name
_DEQUANTIZE = "DequantizeLinear"
_HALVES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}

UNFUSED = "the engine has no integer kernel for it here"


def drop_unfused(
    quantizer: Quantizer, plan: Plan, undone: MutableMapping[str, str], provider: str
) -> tuple[Plan, ir.Model]:
    """The plan without the nodes that stay float in the engine, and its model.

    `undone` receives the reason of each node that is taken out.
    """
    model = quantizer.write(plan)
    if provider != "CPUExecutionProvider" or weight_bytes(model) > _LARGE:
        return plan, model
    for _ in range(_ROUNDS):
        unfused = find_unfused(model, plan)
        if not unfused:
            break
        undone.update(dict.fromkeys(unfused, UNFUSED))
        plan = {name: form for name, form in plan.items() if name not in unfused}
        model = quantizer.write(plan)
    return plan, model


def find_unfused(model: ir.Model, names: Collection[str]) -> list[str]:
    """Those of the named nodes that onnxruntime runs in float on dequantized tensors."""
    makers = {  # fused nodes may have other names, but they produce the same values
        str(output.name): str(node.name)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        for output in node.outputs
        if node.name in names
    }
    found: list[str] = []
    for graph in _graphs(_optimized_graph(model)):
        dequantized = {
            output for node in graph.node if node.op_type == _DEQUANTIZE for output in node.output
        }
        for node in graph.node:
            if node.op_type == _DEQUANTIZE or not dequantized.intersection(node.input):
                continue
            name = _SUFFIX.sub("", node.name)
            made = (makers[output] for output in node.output if output in makers)
            found += [name] if name in names else made
    return found


def is_widened_at_load(model: ir.Model, plan: Plan, provider: str) -> bool:
    """Whether the engine widens all weights of 16 bits when it loads a model.

    It then runs the same kernels as without them, and there is nothing to time.
    """
    stored = all(form.kind in _HALVES for form in plan.values())
    if not stored or provider != "CPUExecutionProvider" or weight_bytes(model) > _LARGE:
        return False
    halves = _HALVES.values()
    for graph in _graphs(_optimized_graph(model)):
        casts = [node for node in graph.node if node.op_type == "Cast"]
        if any(weight.data_type in halves for weight in graph.initializer):
            return False
        if any(attribute.i in halves for node in casts for attribute in node.attribute):
            return False
    return True


def _optimized_graph(model: ir.Model) -> onnx.GraphProto:
    """The graph that onnxruntime runs, after all of its fusions."""
    with tempfile.TemporaryDirectory(prefix="onward-") as folder:
        file = Path(folder) / "optimized.onnx"
        options = SessionOptions(
            optimized_model_filepath=str(file), log_severity_level=4, intra_op_num_threads=1
        )
        InferenceSession(model, options, ["CPUExecutionProvider"])
        if not file.exists():
            raise ProviderError("onnxruntime did not write its optimised graph")
        return onnx.load(file, load_external_data=False).graph


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
