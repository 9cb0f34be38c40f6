"""Replace a linear layer, its softmax cross entropy and their gradients by one operator.

    scores = MatMul(x, w');  loss = SoftmaxCrossEntropyLoss(scores, labels)
    dscores = SoftmaxCrossEntropyLossGrad(...);  dx = Gemm(dscores, w);  dw = Gemm(dscores', x)
 -> loss, dx, dw = LinearCrossEntropy(x, w, b, labels, dy)

Casts and reshapes may be between them. The scores must have no other readers: they are never whole
in memory (kernels/linear_cross_entropy.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.graph.operators import VIEWS
from onward.graph.scopes import ancestors, origin, standard
from onward.passes.composites import is_call
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names, take_over
from onward.passes.value_facts import attribute, dims, input_of, made_by, rank
from onward.providers.torch.private_domain import DOMAIN

LOSS, GRADIENT = "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"
MOST_CLASSES = 8192  # of the scores that are kept as they are
_PASSED = VIEWS | {"Cast"}
_LOG_PROB, _DY = 4, 5  # inputs of the gradient
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass
class _Match:
    """The parts of a linear layer with its loss; gradients that are not asked for are None."""

    loss: ir.Node
    gradient: ir.Node
    x: ir.Value
    w: ir.Value
    b: ir.Value | None
    is_transposed: bool  # whether w is (size, classes)
    dx: ir.Value | None = None
    dw: ir.Value | None = None  # of the shape (classes, size), or (size, classes) if `turned`
    is_turned: bool = False
    db: ir.Value | None = None


def fuse_cross_entropy(model: ir.Model, most_classes: int = MOST_CLASSES) -> None:
    """Replace linear layers with more classes than these and their losses, in place."""
    graph, changed = model.graph, False
    for call in [node for node in graph if is_call(node) and node.op_type == GRADIENT]:
        match = _find(call, most_classes)
        if match is not None:
            _write(model, match)
            changed = True
    if changed:
        model.opset_imports[DOMAIN] = 1
        drop_unused(model)
        graph.sort()


@dataclass(frozen=True)
class FusedScores:
    """The values of a linear layer and its loss that one operator replaces."""

    x: ir.Value  # that it reads in place of the forward and the backward pass
    scores: ir.Value  # in memory a chunk at a time
    others: tuple[ir.Value, ...]  # never in memory: probabilities and gradients of the scores


def find_fused_scores(model: ir.Model, most_classes: int = MOST_CLASSES) -> list[FusedScores]:
    """What `fuse_cross_entropy` would replace in a model."""
    calls = [node for node in model.graph if is_call(node) and node.op_type == GRADIENT]
    matches = filter(None, (_find(call, most_classes) for call in calls))
    return [_fused_scores(match) for match in matches]


def _fused_scores(match: _Match) -> FusedScores:
    between: list[ir.Value] = []
    value = match.loss.inputs[0]
    assert value is not None
    while (node := value.producer()) is not None and not node.domain and node.op_type in _PASSED:
        between.append(value)
        value = node.inputs[0]
        assert value is not None
    gradients = [each for _, each in _after(match.gradient.outputs[0])]
    others = (match.loss.outputs[1], match.gradient.outputs[0], *gradients, *between)
    return FusedScores(match.x, value, tuple(dict.fromkeys(others)))


# -- finding --------------------------------------------------------------------------------------


def _find(call: ir.Node, most_classes: int) -> _Match | None:
    log_prob, weights = input_of(call, _LOG_PROB), input_of(call, 2)
    loss = made_by(log_prob, LOSS)
    if loss is None or weights is not None or attribute(call, "reduction") == "none":
        return None
    if _readers(loss.outputs[1]) != {call} or rank(loss.inputs[1]) != 1:
        return None
    scores = _before(loss.inputs[0], loss)
    product = None if scores is None else made_by(scores, "MatMul", "Gemm")
    match = None if product is None else _linear(product, loss, call, most_classes)
    if match is None or not _add_gradients(match):
        return None
    dy = call.inputs[_DY]
    assert call.graph is not None
    if dy is None or loss.outputs[0] in ancestors(call.graph, [dy]):
        return None
    return match


def _linear(product: ir.Node, loss: ir.Node, call: ir.Node, most_classes: int) -> _Match | None:
    """The linear layer of a product with a matrix."""
    x, w, b = (input_of(product, place) for place in range(3))
    if x is None or w is None or rank(w) != 2 or x.dtype not in _TYPES or w.dtype != x.dtype:
        return None
    is_gemm = product.op_type == "Gemm"
    numbers = [attribute(product, name, 1.0) for name in ("alpha", "beta")] if is_gemm else []
    if any(number != 1.0 for number in numbers) or attribute(product, "transA", 0):
        return None
    if b is not None and (rank(b) != 1 or b.dtype != x.dtype):
        return None
    turned = not (is_gemm and attribute(product, "transB", 0))
    transpose = made_by(w, "Transpose")
    if transpose is not None and transpose.inputs[0] is not None:
        w, turned = transpose.inputs[0], not turned
    sizes = dims(w) or (None, None)
    classes = sizes[1] if turned else sizes[0]
    if not isinstance(classes, int) or classes <= most_classes:
        return None
    if b is not None and dims(b) != (classes,):
        return None
    return _Match(loss, call, x, w, b, is_transposed=turned)


def _add_gradients(match: _Match) -> bool:
    """Add dx, dw and db to a match; False if the gradient of the scores has other readers."""
    d = match.gradient.outputs[0]
    for node, value in _after(d):
        if node is None:  # an output of the graph
            return False
        if made_by(node.outputs[0], "ReduceSum") is not None and match.b is not None:
            axes = input_of(node, 1)
            summed = axes is not None and axes.const_value is not None
            if not summed or axes.const_value.numpy().tolist() != [0] or match.db is not None:  # type: ignore[union-attr]
                return False
            if attribute(node, "keepdims", 1) or rank(value) != 2:
                return False
            match.db = node.outputs[0]
        elif not _add_product(match, node, value):
            return False
    return True


def _add_product(match: _Match, node: ir.Node, d: ir.Value) -> bool:
    """Add dx or dw to a match; False if the product is neither, or the second of its kind."""
    if node.domain or node.op_type != "Gemm" or input_of(node, 2) is not None:
        return False
    a, b = node.inputs[:2]
    turns = [attribute(node, name, 0) for name in ("transA", "transB")]
    if attribute(node, "alpha", 1.0) != 1.0 or a is b:
        return False
    other = b if a is d else a
    y = node.outputs[0]
    if a is d and turns[0] == 0 and other is match.w and turns[1] == int(match.is_transposed):
        is_first = match.dx is None
        match.dx = y
        return is_first
    if _root(other) is not _root(match.x):
        return False
    is_first = match.dw is None
    match.dw = y
    match.is_turned = a is not d
    return is_first and turns == [1, 0] and rank(other) == 2


def _before(value: ir.Value | None, reader: ir.Node) -> ir.Value | None:
    """The value that reaches a reader through casts and views; None if others read it."""
    while value is not None:
        if value.is_graph_output() or _readers(value) != {reader}:
            return None
        node = value.producer()
        if node is None or node.domain or node.op_type not in _PASSED:
            return value
        reader, value = node, node.inputs[0]
    return None


def _after(value: ir.Value) -> list[tuple[ir.Node | None, ir.Value]]:
    """The nodes that read a value through casts and views, with what they read."""
    found: list[tuple[ir.Node | None, ir.Value]] = []
    if value.is_graph_output():
        found.append((None, value))
    for node in _readers(value):
        if node.domain == "" and node.op_type in _PASSED:
            found += _after(node.outputs[0])
        else:
            found.append((node, value))
    return found


def _readers(value: ir.Value) -> set[ir.Node]:
    return {node for node, _ in value.uses()}


def _root(value: ir.Value | None) -> ir.Value | None:
    """The value that views are of."""
    return None if value is None else origin(value, standard(VIEWS))


# -- writing --------------------------------------------------------------------------------------


def _write(model: ir.Model, match: _Match) -> None:
    names, call, loss = Names(model), match.gradient, match.loss
    attributes = [
        ir.AttrString("reduction", attribute(loss, "reduction", "mean")),
        ir.AttrInt64("transposed", int(match.is_transposed)),
    ]
    if (ignored := attribute(loss, "ignore_index")) is not None:
        attributes.append(ir.AttrInt64("ignore_index", int(ignored)))
    node = ir.Node(
        DOMAIN,
        "LinearCrossEntropy",
        [match.x, match.w, match.b, loss.inputs[1], call.inputs[_DY]],
        attributes,
        num_outputs=4,
        name=names.fresh(f"{loss.name}/linear"),
    )
    made = dict(zip(("loss", "dx", "dw", "db"), node.outputs))
    for name, value in made.items():
        value.name = names.fresh(f"{node.name}/{name}")
    graph = call.graph
    assert graph is not None
    graph.insert_before(call, node)
    _type(made["dx"], match.x)
    _type(made["dw"], match.w)
    _type(made["loss"], loss.outputs[0])
    take_over(loss.outputs[0], made["loss"])
    if match.db is not None and match.b is not None:
        _type(made["db"], match.b)
        take_over(match.db, _cast(graph, call, made["db"], match.db, names))
    if match.dx is not None:
        flat = _reshape(graph, call, made["dx"], match.dx, names)
        take_over(match.dx, flat)
    if match.dw is not None:
        dw = made["dw"]
        if match.is_turned != match.is_transposed:
            dw = _insert(graph, call, "Transpose", [dw], [ir.AttrInt64s("perm", [1, 0])], names)
        take_over(match.dw, dw)


def _reshape(
    graph: ir.Graph, before: ir.Node, value: ir.Value, wanted: ir.Value, names: Names
) -> ir.Value:
    """(..., size) as rows, if the product was of rows."""
    if rank(value) == rank(wanted):
        return value
    axis = ir.AttrInt64("axis", (rank(value) or 1) - 1)
    return _insert(graph, before, "Flatten", [value], [axis], names)


def _cast(
    graph: ir.Graph, before: ir.Node, value: ir.Value, wanted: ir.Value, names: Names
) -> ir.Value:
    if value.dtype == wanted.dtype or wanted.dtype is None:
        return value
    given = [ir.AttrInt64("to", int(wanted.dtype)), ir.AttrInt64("saturate", 1)]
    given.append(ir.AttrString("round_mode", "up"))
    return _insert(graph, before, "Cast", [value], given, names)


def _insert(
    graph: ir.Graph,
    before: ir.Node,
    operator: str,
    inputs: list[ir.Value],
    attributes: list[ir.Attr],
    names: Names,
) -> ir.Value:
    name = names.fresh(f"{inputs[0].name}/{operator}")
    node = ir.Node("", operator, inputs, attributes, num_outputs=1, name=name)
    node.outputs[0].name = name
    graph.insert_before(before, node)
    return node.outputs[0]


def _type(value: ir.Value, like: ir.Value) -> None:
    value.type, value.shape = like.type, like.shape
