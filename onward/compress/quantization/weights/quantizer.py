"""WeightQuantizer: weights of 8, 4 or 2 bits, float data.

quantizer = WeightQuantizer("model.onnx", calibration, bits=4)
model = quantizer.write(quantizer.plan)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import Progress, no_progress
from onward.compress.quantization.node_names import drop_traces
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.compress.quantization.weights.awq import choose_factors, divide_inputs
from onward.compress.quantization.weights.blocks import Array
from onward.compress.quantization.weights.budget import (
    bytes_for_bits,
    bytes_for_file,
    choose_formats,
    least_bytes,
    stored_bytes,
)
from onward.compress.quantization.weights.file_size import fit_file
from onward.compress.quantization.weights.measured_inputs import MeasuredInputs
from onward.compress.quantization.weights.prepare import prepare
from onward.compress.quantization.weights.rounding import (
    METHODS,
    Inputs,
    choose_scheme,
    is_exact,
    relative_error,
    round_matrix,
)
from onward.compress.quantization.weights.sites import (
    LEAST_BLOCK,
    WeightMatrix,
    WeightSite,
    find_sites,
    large_weights,
)
from onward.compress.quantization.weights.stored import LAYOUTS, Stored, store
from onward.compress.quantization.weights.writer import WeightWriter
from onward.errors import OptionError
from onward.graph.files import Source, load, saved_bytes
from onward.graph.scopes import graphs_of
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names, nodes_of

BITS = (8, 4, 2)
_LARGE_SHARE = 0.05  # of the weights
BLOCKS = {8: 64, 4: 32, 2: 32}  # the default block of each number of bits
_OPSETS = {8: 21, 4: 21, 2: 25}  # the first opset with the types and with blocks


class WeightQuantizer:
    """Stores the weights of MatMul, Gemm, Conv and embeddings in few bits (a `Quantizer`).

    Args:
        model: the model, which does not change
        calibration: batches to measure the layers' inputs on; None: only weights decide
        bits: 8, 4 or 2
        block: the weights that share a scale, a power of 2 from 16; None: by the bits
        method: "rtn" (the nearest code, scales by the largest weight), "mse" (scales of the least
            error), "gptq" (errors are passed on to later inputs), "awq" (the weights of large
            inputs are rounded in finer steps), "auto" (the best of rtn, mse and gptq); gptq and
            awq need calibration
        average_bits: choose bits and block of each weight so that the whole model takes this many
            bits for a weight, scales included
        size: the same, for the bytes of the model's file
        progress: is called with what begins now, what is done, and the total
    """

    def __init__(
        self,
        model: Source,
        calibration: Calibration | None = None,
        *,
        bits: int = 4,
        block: int | None = None,
        method: str = "auto",
        average_bits: float | None = None,
        size: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        _check(bits, block, method, average_bits, size, calibration)
        self._method, self._progress = method, progress
        progress("prepare the model", 0, None)
        self._model = prepare(load(model).clone())
        self._stores, self._refused = find_sites(self._model)
        self._sites = {site.name: site for each in self._stores for site in each.sites}
        self._rounded: dict[tuple[WeightMatrix, NodeFormat], Stored] = {}
        self._chosen: dict[WeightMatrix, tuple[tuple[NodeFormat, str], NodeFormat]] = {}
        self._schemes: dict[tuple[WeightMatrix, int, int], str] = {}
        self._squares: Mapping[WeightMatrix, Inputs] | None = None
        self._errors: dict[WeightMatrix, float] = {}  # of weights of 2 bits
        self._inputs = MeasuredInputs(self._model, calibration, method, progress)
        self._left = _name_left(self._model, self._refused)
        self._widened = [] if bits > 2 else _name_widened(self._stores)
        if average_bits is not None:
            self._plan, _ = self._fit(bytes_for_bits(self._model, self._stores, average_bits))
        elif size is not None and self._stores:
            left = bytes_for_file(self._model, self._stores, size)
            least = least_bytes(self._stores)
            self._plan = fit_file(
                self._fit, lambda plan: saved_bytes(self.write(plan)), size, left, least
            )
        else:
            formats = {each: self._format(each, bits, block) for each in self._stores}
            self._plan = self._round_all(formats)
        self._inputs.forget()

    @property
    def model(self) -> ir.Model:
        """The prepared float model; every node has a unique name."""
        return self._model

    @property
    def plan(self) -> Plan:
        """The format of every node whose weight may be stored in few bits."""
        return self._plan

    @property
    def refused(self) -> Mapping[str, str]:
        """Nodes with a weight that stays as it is, and why."""
        return self._refused

    @property
    def notes(self) -> list[str]:
        """What a user must know of the plan: what weights of 2 bits cost."""
        return self.notes_for(self._plan)

    def notes_for(self, plan: Plan) -> list[str]:
        """What a user must know of a plan."""
        small = {self._sites[name].store for name, form in plan.items() if form.bits == 2}
        lost = [self._errors[each] for each in self._stores if each in small]
        lines = [*self._widened, *(self._left if plan else ())]  # else the reasons say it
        if lost:
            several = f"{len(lost)} weights of 2 bits are"
            which = several if len(lost) > 1 else "a weight of 2 bits is"
            lines.append(
                f"{which} off by {sum(lost) / len(lost):.0%} (4 bits: about 8 %): "
                "tune the rounding, or use 4 bits"
            )
        return lines

    def groups(self, plan: Plan) -> Sequence[Sequence[str]]:
        """The nodes that read one weight: it is stored once only if all of them read it."""
        groups = ([s.name for s in each.sites if s.name in plan] for each in self._stores)
        return [group for group in groups if group]

    def write(self, plan: Plan) -> ir.Model:
        """A new model with the weights of a plan's nodes in few bits."""
        unknown = [name for name in plan if name not in self._sites]
        if unknown:
            raise OptionError(
                f"node {unknown[0]!r} has no weight that can be stored in few bits\n"
                "choose nodes of the quantizer's plan"
            )
        wanted = {(self._sites[name].store, format) for name, format in plan.items()}
        for each, format in wanted:
            if not each.allows_bits(format.bits):
                raise OptionError(
                    f"{each.sites[0].name!r} cannot be stored in 2 bits: onnxruntime computes it "
                    f"wrongly unless its outputs are a multiple of 4, not {each.shape[0]}\n"
                    "give it 4 bits"
                )
        missing = {pair for pair in wanted if pair not in self._rounded}
        while missing:  # one format of each weight at a time: their inputs are measured once
            places = {each: place for place, each in enumerate(self._stores)}
            ordered = sorted(missing, key=lambda pair: (places[pair[0]], str(pair[1])))
            some = dict(ordered)
            self._round(some)
            missing -= set(some.items())
        model = self._model.clone()
        graphs = dict(zip(graphs_of(self._model), graphs_of(model), strict=True))
        nodes = dict(zip(nodes_of(self._model), nodes_of(model), strict=True))
        writer = WeightWriter(model)
        divided: dict[tuple[ir.Value, int], tuple[Array, list[ir.Node]]] = {}
        for name, site in self._sites.items():
            if name in plan:
                stored, node = self._rounded[site.store, plan[name]], nodes[site.node]
                writer.write(site, node, graphs[_holder(site)], stored)
                if stored.factors is not None and node.inputs[0] is not None:
                    key = node.inputs[0], id(stored.factors)
                    divided.setdefault(key, (stored.factors, []))[1].append(node)
        names = Names(model)
        for (value, _), (factors, readers) in divided.items():
            divide_inputs(model, value, readers, factors, names)
        opset = max((_OPSETS[format.bits] for format in plan.values()), default=0)
        drop_traces(drop_unused(model))
        return lower_opset(model, STOCK_OPSET, max(opset, 13))

    # -- rounding ----------------------------------------------------------------------------------

    def _format(self, each: WeightMatrix, bits: int, block: int | None) -> NodeFormat:
        if not each.allows_bits(bits) or each.is_table:  # what a table loses, no layer can correct
            bits = max(bits, 4)
        size = _fit_block(each, bits, block or BLOCKS[bits])
        return NodeFormat(kind="weights", bits=bits, block=size, method=self._method)

    def _round(self, formats: Mapping[WeightMatrix, NodeFormat]) -> dict[WeightMatrix, NodeFormat]:
        """Round weights and keep them; their formats with the method that was used."""
        done: dict[WeightMatrix, NodeFormat] = {}
        total = float(sum(each.size for each in formats))
        for some, inputs in self._measured(formats):
            factors = self._choose_factors(formats, inputs)
            for each in some:
                passed = float(sum(other.size for other in done))
                self._progress(f"round {each.weight.name}", passed, total)
                known = inputs.get(each, Inputs())
                done[each] = self._round_one(each, formats[each], known, factors.get(each))
        return done

    def _choose_factors(
        self, formats: Mapping[WeightMatrix, NodeFormat], inputs: Mapping[WeightMatrix, Inputs]
    ) -> dict[WeightMatrix, Array]:
        """AWQ's factors: the same ones for weights that read the same data in the same format."""
        alike: dict[tuple[Inputs, int, int, str], list[WeightMatrix]] = {}
        for each, known in inputs.items():
            form = formats[each]
            scheme = self._scheme(each, form)
            if form.method != "awq" or scheme == "offsets":  # offsets follow each block's range
                continue
            if not each.is_table and len(self._inputs.names(each)) == 1:
                key = known, form.bits, form.block, scheme
                alike.setdefault(key, []).append(each)
        found: dict[WeightMatrix, Array] = {}
        for (known, bits, block, scheme), stores in alike.items():
            assert known.moments is not None
            weights = [each.matrix() for each in stores]
            factors = choose_factors(weights, known.moments, bits, block, scheme)
            found |= {} if factors is None else dict.fromkeys(stores, factors)
        return found

    def _round_one(
        self, each: WeightMatrix, format: NodeFormat, inputs: Inputs, factors: Array | None
    ) -> NodeFormat:
        method, scheme = format.method or self._method, self._scheme(each, format)
        w = each.matrix()
        if factors is not None:
            w, inputs = w * factors, inputs.divided(factors)
        blocks, used = round_matrix(w, format.bits, format.block, scheme, method, inputs)
        if format.bits == 2:
            self._errors[each] = relative_error(w, blocks, None) ** 0.5
        each.forget()
        stored = store(blocks, "bytes" if each.is_shared else LAYOUTS[each.kind])
        if factors is not None:
            stored, used = replace(stored, factors=factors), "awq"
        final = replace(format, method=used)
        self._rounded[each, final] = self._rounded[each, format] = stored
        return final

    def _scheme(self, each: WeightMatrix, format: NodeFormat) -> str:
        key = each, format.bits, format.block
        if key not in self._schemes:
            self._schemes[key] = (
                choose_scheme(
                    each.matrix(),
                    format.bits,
                    format.block,
                    offsets=format.method != "awq" and each.allows_offsets(format.block),
                )
                if each.allows_zeros(format.bits, format.block)
                else "symmetric"
            )
        return self._schemes[key]

    def _measured(
        self, formats: Mapping[WeightMatrix, NodeFormat]
    ) -> Iterator[tuple[list[WeightMatrix], dict[WeightMatrix, Inputs]]]:
        """Stores with the moments of their inputs, as many at a time as there is memory for."""
        needing = [
            each
            for each in formats
            if self._inputs.names(each) and self._needs_moments(each, formats[each])
        ]
        yield [each for each in formats if each not in needing], {}
        for ready in self._inputs.moments(needing):
            yield list(ready), ready

    def _needs_moments(self, each: WeightMatrix, format: NodeFormat) -> bool:
        if not self._inputs.can_measure or format.method in ("rtn", "mse"):
            return False
        if self._method == "auto" and format.bits == 8:
            return False  # what is left to gain is not worth a run of the float model
        scheme = self._scheme(each, format)
        return not is_exact(each.matrix(), format.bits, format.block, scheme)

    def _round_all(self, formats: Mapping[WeightMatrix, NodeFormat]) -> Plan:
        """The plan of all weights, rounded in these formats."""
        wanted = {each: (form, self._scheme(each, form)) for each, form in formats.items()}
        changed = [each for each in wanted if self._chosen.get(each, (None,))[0] != wanted[each]]
        if self._method == "awq":  # factors are of all weights that read the same data
            changed = list(wanted) if changed else []
        for each, final in self._round({each: formats[each] for each in changed}).items():
            self._chosen[each] = wanted[each], final
        return {site.name: self._chosen[each][1] for each in self._stores for site in each.sites}

    def _fit(self, budget: int) -> tuple[Plan, int]:
        """A plan whose weights take at most so many bytes, and the bytes that they take."""
        if self._squares is None:
            self._squares = self._inputs.squares(self._stores)
        self._progress("choose bits for each layer", 0, None)
        formats: dict[WeightMatrix, NodeFormat] = {}
        chosen = choose_formats(self._stores, self._squares, budget)
        for each, (bits, block, scheme) in chosen.items():
            self._schemes[each, bits, block] = scheme
            formats[each] = NodeFormat(kind="weights", bits=bits, block=block, method=self._method)
        taken = sum(stored_bytes(each, choice) for each, choice in chosen.items())
        return self._round_all(formats), taken


def _holder(site: WeightSite) -> ir.Graph:
    """The graph that gets the weight of a site: the node's own, for a product inside of If.

    onnxruntime fuses DequantizeLinear with a product if the weight is of the same graph, and does
    not load the model if it is of an outer one. Other weights stay where they are.
    """
    is_fused = site.kind == "linear" and not site.store.is_shared
    graph = site.node.graph if is_fused else site.store.weight.graph
    assert isinstance(graph, ir.Graph)
    return graph


def _fit_block(each: WeightMatrix, bits: int, block: int) -> int:
    """The block of a weight: this one, or a smaller one that all engines take."""
    while not each.allows_block(bits, block) and block > LEAST_BLOCK:
        block //= 2
    return block


def _name_left(model: ir.Model, refused: Mapping[str, str]) -> list[str]:
    """Say why a large share of the weights stays as it is."""
    sizes: Counter[str] = Counter()
    for node in nodes_of(model):
        if str(node.name) in refused:
            sizes[refused[str(node.name)]] += large_weights(node)
    total = sum(each.size for graph in model.graphs() for each in _tensors(graph))
    return [
        f"{size / total:.0%} of the weights stay as they are: {reason}"
        for reason, size in sizes.most_common()
        if size > _LARGE_SHARE * total
    ]


def _tensors(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value


def _name_widened(stores: Sequence[WeightMatrix]) -> list[str]:
    """A line about the weights that get 4 bits where 2 are asked for, if there are any."""
    names = [site.name for each in stores if not each.allows_bits(2) for site in each.sites]
    lines = (
        ["4 bits for tables whose rows are looked up"] if any(s.is_table for s in stores) else []
    )
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(
            f"4 bits for {names[0]}{more}: onnxruntime computes 2 bits wrongly unless the outputs "
            "are a multiple of 4"
        )
    return lines


def _check(
    bits: int,
    block: int | None,
    method: str,
    average_bits: float | None,
    size: int | None,
    calibration: Calibration | None,
) -> None:
    if bits not in BITS:
        raise OptionError(f"bits must be 8, 4 or 2, not {bits}")
    if block is not None and (block < LEAST_BLOCK or block & (block - 1)):
        raise OptionError(f"block must be a power of 2, {LEAST_BLOCK} or more, not {block}")
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if method in ("gptq", "awq") and calibration is None:
        raise OptionError(f"{method} measures the layers' inputs\ngive data to calibrate with")
    if average_bits is not None and size is not None:
        raise OptionError("average_bits and size exclude each other\ngive one of them")
