"""Int8Quantizer: prepares a float model, measures it, and writes any int8 plan of it.

quantizer = Int8Quantizer("model.onnx", calibration)
quantized = quantizer.write(quantizer.plan)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.quantization.int8.bias_correction import (
    Corrections,
    apply_corrections,
)
from onward.compress.quantization.int8.chains import (
    data_inputs,
    divide,
    find_chains,
    result_of,
)
from onward.compress.quantization.int8.dynamic_writer import DynamicWriter
from onward.compress.quantization.int8.int8_layers import (
    INSIDE_BODY,
    Int8Layer,
    array_of,
    find_layers,
    find_ties,
)
from onward.compress.quantization.int8.prepare import prepare
from onward.compress.quantization.int8.ranges import Int8Range, check_method, choose_range
from onward.compress.quantization.int8.smoothing import Smoothed, undo
from onward.compress.quantization.int8.smoothing import smooth as scale_channels
from onward.compress.quantization.int8.static_writer import (
    StaticWriter,
    StoreWeight,
    add_initializer,
)
from onward.compress.quantization.int8.statistics import (
    ValueHistogram,
    measure_bounds,
    measure_histograms,
    open_session,
)
from onward.compress.quantization.int8.weight_rounding import round_layers
from onward.compress.quantization.int8.weight_scales import channel_scales, round_weight
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.errors import OptionError
from onward.graph.files import Source
from onward.graph.int8_weights import CUT_OFF_FREE, LARGEST, mark_processors
from onward.passes.drop_unused import drop_unused
from onward.passes.normalize import sort_nodes
from onward.passes.rewrite import Names
from onward.passes.value_facts import Array, is_constant

_FEW = 8  # batches on which ways to quantize are compared
_MOST = 64  # batches that the rounding of weights is learned on
_TRIED = ("minmax", "percentile", "mse")  # what "auto" compares; entropy only if asked for
_FOR_ALL = (
    "made for all processors: weights of int8 products are from -64 to 64, as x86-64 without VNNI "
    "cuts off sums of products of larger ones"
)
_NOT_FOR_ALL = (
    "made for processors like this one: on x86-64 without VNNI, which cuts off sums of its int8 "
    "products, results may be wrong; --for all makes a file for all processors"
)

Outputs = list[list[Array]]


@final
class Int8Quantizer:
    """Quantizes data and weights to 8 bits; a `Quantizer`.

    Args:
        model: a float32 model; it does not change
        calibration: data to measure with. Without it, or with random data, only MatMul, Gemm and
            LSTM are quantized, with ranges of each run, and tables of embeddings
        provider: the engine that the model is for: OpenVINO has no kernels for ranges of each run
        dynamic: True: ranges of each run for MatMul and Gemm although there is data;
            None or False: measured ranges where there is data
        ranges: how to choose ranges: "minmax", "percentile", "mse", "entropy"; "auto": the one
            with the least error of the model's outputs
        smooth: whether to move the range of data's channels into the weights of MatMul and Gemm
        equalize: the same between convolutions
        correct_biases: whether to restore the means of layers' outputs by their biases
        largest: the largest number that 8-bit weights of products may have, up to 127; those
            beyond 64 have wrong products on x86-64 without VNNI
        progress: called with what begins now, how much is done, and the total
    """

    def __init__(
        self,
        model: Source,
        calibration: Calibration | None,
        *,
        provider: str = "cpu",
        dynamic: bool | None = None,
        ranges: str = "auto",
        smooth: bool = True,
        equalize: bool = True,
        correct_biases: bool = True,
        largest: int = CUT_OFF_FREE,
        progress: Progress = no_progress,
    ) -> None:
        check_method(ranges)
        self._largest = _check_largest(largest)
        progress("prepare the model", 0, None)
        self._model = prepare(model)
        self._is_openvino = "openvino" in provider.lower()
        self._layers, self._refused = find_layers(self._model)
        data = None if calibration is None or calibration.is_random else calibration
        self._ties = find_ties(self._model, self._layers)
        self._rounded: dict[tuple[str, int], tuple[Array, Array]] = {}
        self._chains = find_chains(self._model, self._layers) if data else []
        self._plan = self._make_plan(dynamic, data is not None)
        self._histograms: dict[str, ValueHistogram] = {}
        self._ranges: dict[str, Int8Range] = {}
        self._smoothed: list[Smoothed] = []
        self._corrections: Corrections = {}
        if data is None or not any(layer.is_linear for layer in self._layers.values()):
            return
        few = Calibration(data, data.inputs, limit=_FEW)
        expected = _outputs(self._model, few)
        if smooth or equalize:
            progress("scale channels", 0, None)
            free = {n: each for n, each in self._layers.items() if each.weight not in self._ties}
            self._smoothed = scale_channels(
                self._model,
                free,
                data,
                matrices=smooth,
                convolutions=equalize and not dynamic,
                int8=self._int8_results(),
            )
            self._layers, _ = find_layers(self._model)  # scaled weights may be copies of others
            self._ties = find_ties(self._model, self._layers)
        progress("round weights", 0, None)
        local = self._round_layers(data)
        progress("measure ranges", 0, None)
        self._measure(data)
        progress("choose ranges", 0, None)
        self._method = self._choose_method(ranges, few, expected)
        if correct_biases:
            progress("correct biases", 0, None)
            self._correct(few, expected, local)

    @property
    def model(self) -> ir.Model:
        return self._model

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def refused(self) -> Mapping[str, str]:
        return self._refused

    @property
    def notes(self) -> list[str]:
        """What a user must know of the plan: its processors, and which nodes it cannot have."""
        return self.notes_for(self._plan)

    def notes_for(self, plan: Plan) -> list[str]:
        """What a user must know of a plan."""
        inside = [name for name, reason in self._refused.items() if reason == INSIDE_BODY]
        layers = [each for name, each in self._layers.items() if name in plan]
        line = _FOR_ALL if self._largest <= CUT_OFF_FREE else _NOT_FOR_ALL
        lines = [line] if any(each.operator != "Gather" for each in layers) else []
        if not inside:
            return lines
        more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
        return [
            *lines,
            f"{inside[0]}{more} stayed float inside of If, Loop or Scan: int8 takes only layers of "
            "the main graph; int4 stores weights of inner graphs, too",
        ]

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        return divide(self._model, self._layers, plan)

    def other_kinds(self, plan: Plan) -> Plan:
        """Ranges of each run for products with measured ones, and measured ones for the others."""
        found = {}
        for name, form in plan.items():
            layer = self._layers.get(name)
            if layer is None or layer.operator not in ("MatMul", "Gemm") or self._is_openvino:
                continue
            if layer.data in self._ranges:
                kind = "dynamic" if form.kind == "static" else "static"
                found[name] = replace(form, kind=kind)
        return found

    def write(self, plan: Plan) -> ir.Model:
        return self._write(plan, self._corrections)

    def _write(self, plan: Plan, corrections: Corrections) -> ir.Model:
        copy = self._model.clone()
        names = Names(copy)
        for each in self._smoothed:
            if not any(name in plan for name in each.layers):
                undo(copy, each, self._layers, names)
        chosen = {name: each for name, each in corrections.items() if name in plan}
        apply_corrections(copy, self._layers, chosen, names)
        store = self._storage(copy, names, plan)
        dynamic = DynamicWriter(copy, store, names.fresh, self._largest)
        static = [name for name, each in plan.items() if each.kind == "static"]
        writer = StaticWriter(copy, self._layers, static, self._ranges, store, names.fresh)
        writer.write()
        for node in list(copy.graph):
            name = str(node.name)
            if name in plan and plan[name].kind != "static":
                dynamic.write(node, self._layers[name])
        if plan:
            mark_processors(copy, self._largest)
        return drop_unused(sort_nodes(copy))

    def _storage(self, copy: ir.Model, names: Names, plan: Plan) -> StoreWeight:
        """What stores each weight of a model in 8 bits, once."""
        stored: dict[tuple[str, int], ir.Value] = {}
        tables = {each.weight: each for name, each in self._layers.items() if name in plan}

        def store(layer: Int8Layer) -> tuple[ir.Value, Array]:
            key = (layer.weight, layer.channel_axis)
            table = tables.get(self._ties.get(layer.weight, ""))
            if table is not None:  # the engine transposes it once, when it loads the model
                rows, scales = store(table)
                if key not in stored:
                    node = ir.node("Transpose", [rows], {"perm": [1, 0]})
                    node.name = names.fresh(f"{layer.weight}/Transpose")
                    node.outputs[0].name = names.fresh(f"{layer.weight}/int8")
                    node.outputs[0].type = rows.type
                    copy.graph.append(node)
                    stored[key] = node.outputs[0]
                return stored[key], scales
            rounded, scales = self._round(layer)
            if key not in stored:
                name = names.fresh(f"{layer.weight}/int8")
                stored[key] = add_initializer(copy.graph, name, rounded)
            return stored[key], scales

        return store

    def _round(self, layer: Int8Layer) -> tuple[Array, Array]:
        """A layer's weight in 8 bits, and its scales."""
        key = (layer.weight, layer.channel_axis)
        if key not in self._rounded:
            weight = array_of(self._model, layer.weight)
            axis, largest = layer.channel_axis, self._largest_of(layer)
            scales = channel_scales(weight, axis, search=layer.is_linear, largest=largest)
            self._rounded[key] = round_weight(weight, scales, axis, largest), scales
        return self._rounded[key]

    def _largest_of(self, layer: Int8Layer) -> int:
        """The largest number of a rounded weight: a table that no product reads has all bits."""
        is_only_read = layer.operator == "Gather" and layer.weight not in self._ties.values()
        return LARGEST if is_only_read else self._largest

    def _round_layers(self, data: Calibration) -> Corrections:
        """Round the weights that one layer reads; return what their biases then lack."""
        readers = Counter(layer.weight for layer in self._layers.values())
        free = {
            name: layer
            for name, layer in self._layers.items()
            if layer.is_linear and name in self._plan
            if readers[layer.weight] == 1 and layer.weight not in self._ties
        }
        some = Calibration(data, data.inputs, limit=_MOST)
        corrections: Corrections = {}
        for name, rounded in round_layers(self._model, free, some, self._largest):
            layer = free[name]
            self._rounded[layer.weight, layer.channel_axis] = rounded.weight, rounded.scales
            if layer.operator != "MatMul" or layer.adder is not None:
                corrections[name] = rounded.correction
        return corrections

    def _int8_results(self) -> set[str]:
        """The values that int8 nodes of the plan make."""
        found = set()
        for node in self._model.graph:
            layer = self._layers.get(str(node.name))
            if str(node.name) in self._chains or (layer and layer.operator in ("Conv", "Gemm")):
                found.add(str(result_of(node).name))
        return found

    def _choose_method(self, ranges: str, few: Calibration, expected: Outputs) -> str:
        """The way to choose ranges whose quantized model errs least."""
        if ranges != "auto":
            self._ranges = self._choose(ranges)
            return ranges
        errors = {}
        for method in _TRIED:
            self._ranges = self._choose(method)
            errors[method] = _output_error(self.write(self._plan), few, expected)
        best = min(errors, key=lambda method: errors[method])
        self._ranges = self._choose(best)
        return best

    def _correct(self, few: Calibration, expected: Outputs, found: Corrections) -> None:
        """Keep corrections of biases if the outputs then err less."""
        before = _output_error(self.write(self._plan), few, expected)
        after = _output_error(self._write(self._plan, found), few, expected)
        if after < before:
            self._corrections = found

    def _make_plan(self, dynamic: bool | None, measured: bool) -> dict[str, NodeFormat]:
        plan: dict[str, NodeFormat] = {}
        chains = set(self._chains)
        for node in self._model.graph:
            name = str(node.name)
            layer = self._layers.get(name)
            if layer is None:
                if name in chains and not dynamic:
                    plan[name] = NodeFormat(kind="static")
            elif layer.operator == "Gather":
                plan[name] = NodeFormat(kind="weights", bits=8, method="rtn")
            elif (
                layer.operator != "Conv"
                and self._is_openvino
                and (dynamic or not measured or layer.operator == "LSTM")
            ):
                self._refused[name] = "OpenVINO has no int8 kernel without measured ranges"
            elif layer.operator == "LSTM":
                plan[name] = NodeFormat(kind="dynamic", method="mse")
            elif dynamic or not measured:
                if layer.operator == "Conv":
                    self._refused[name] = "an int8 convolution needs data to measure ranges with"
                else:
                    plan[name] = NodeFormat(kind="dynamic", method="mse")
            else:
                plan[name] = NodeFormat(kind="static", method="mse")
        return plan

    def _measure(self, data: Calibration) -> None:
        values: dict[str, None] = {}
        for node in self._model.graph:
            if str(node.name) in self._plan and self._plan[str(node.name)].kind == "static":
                for value in [*data_inputs(node), result_of(node)]:
                    if not is_constant(value):
                        values[str(value.name)] = None
        bounds = measure_bounds(self._model, list(values), data)
        self._histograms = measure_histograms(self._model, bounds, data)

    def _choose(self, method: str) -> dict[str, Int8Range]:
        return {name: choose_range(each, method) for name, each in self._histograms.items()}


def _check_largest(given: int) -> int:
    if not 1 <= given <= LARGEST:
        raise OptionError(f"largest must be from 1 to {LARGEST}, not {given}")
    return given


def _outputs(model: ir.Model, data: Calibration) -> Outputs:
    session = open_session(model)
    return [session.run(None, feeds) for feeds in data.batches()]


def _output_error(model: ir.Model, data: Calibration, expected: Outputs) -> float:
    """The squared error of a model's float outputs, each relative to its own squares."""
    sums: dict[int, list[float]] = {}
    for ours, theirs in zip(_outputs(model, data), expected, strict=True):
        for place, (y, z) in enumerate(zip(ours, theirs, strict=True)):
            if isinstance(z, np.ndarray) and z.dtype.kind == "f":
                error, square = sums.setdefault(place, [0.0, 0.0])
                exact = np.where(np.isfinite(z), z, 0).astype(np.float64)
                found = np.where(np.isfinite(z), y, 0).astype(np.float64)
                sums[place] = [
                    error + float(((found - exact) ** 2).sum()),
                    square + float((exact * exact).sum()),
                ]
    return sum(error / max(square, 1e-30) for error, square in sums.values())
