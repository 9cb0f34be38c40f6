"""Replace attention and its gradient by torch's fused kernels, in pairs.

    y = Attention(q, k, v)                    y, *kept = AttentionForward(q, k, v)
    dq, dk, dv = AttentionGrad(q, ..., dy)    dq, dk, dv = AttentionBackward(dy, q, ..., y, *kept)

The forward keeps the log-sum-exp of every row for its gradient, as torch's own autograd does. A
gradient whose forward node is missing, or has other outputs than y, computes the forward again. The
kernel is chosen before anything runs: by the device, the type, the head's size and the mask.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onward.graph.scopes import graphs_of
from onward.passes.composites import DOMAIN as COMPOSITES
from onward.passes.composites import is_call
from onward.passes.drop_unused import drop_unused
from onward.passes.rewrite import Names, take_over
from onward.passes.value_facts import attribute, dims, input_of, rank
from onward.providers.torch.dtypes import DTYPES
from onward.providers.torch.kernels.attention import fused_precision
from onward.providers.torch.kernels.attention_grad import CPU, CUDNN, EFFICIENT, FLASH
from onward.providers.torch.private_domain import DOMAIN

FORWARD, GRADIENT = "Attention", "AttentionGrad"

_Y, _DY = 7, 11  # indices of AttentionGrad's inputs, each followed by three that must be absent
_OPTIONS = ("is_causal", "kv_num_heads", "q_num_heads", "scale")
_TYPES = {
    "cpu": (torch.float32, torch.float64, torch.float16, torch.bfloat16),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}
_CHOICES = {1: FLASH, 2: EFFICIENT, 3: CUDNN}  # torch's numbers; 0 is no fused kernel
_LENGTH = 128  # assumed for a sequence of unknown length


def has_fused_attention(call: ir.Node, device: torch.device) -> bool:
    """Whether torch has a fused kernel for a whole `onward::Attention` or `onward::AttentionGrad`.

    >>> call = ir.node("AttentionGrad", [None] * 15, domain="onward")
    >>> has_fused_attention(call, torch.device("cpu"))
    False
    """
    if not _has_supported_inputs(call, device):
        return False
    if call.op_type == FORWARD:
        return True
    others = [*range(_Y + 1, _Y + 4), *range(_DY + 1, _DY + 4)]
    gradients = [input_of(call, place) for place in others[3:]]
    if input_of(call, _DY) is None or any(gradient is not None for gradient in gradients):
        return False
    wrt = attribute(call, "wrt", [])
    wanted = [place for place, value in zip(wrt, call.outputs) if _is_used(value)]
    return all(place < 3 for place in wanted) and _backend(call, device) is not None


def fuse_attention(model: ir.Model, device: torch.device) -> None:
    """Replace the attention calls that torch has fused kernels for, in place.

    A gradient and its forward node become private operators; a forward call that has no gradient
    becomes the standard operator. Nodes that are then unused are removed.
    """
    calls = [node for graph in graphs_of(model) for node in graph if is_call(node)]
    calls = [node for node in calls if node.op_type in (FORWARD, GRADIENT)]
    calls = [node for node in calls if has_fused_attention(node, device)]
    if not calls:
        return
    names = Names(model)
    for call in calls:
        if call.op_type == GRADIENT:
            _fuse_gradient(call, device, names)
    for call in calls:
        if call.graph is not None:  # a forward call without a gradient
            _write_standard(call)
    for call in calls:
        model.functions.pop(call.op_identifier(), None)
    model.opset_imports[DOMAIN] = 1
    drop_unused(model)


def _fuse_gradient(call: ir.Node, device: torch.device, names: Names) -> None:
    backend = _backend(call, device)
    assert backend is not None
    kept = _write_forward(call, _forward_of(call), backend, names)
    _write_backward(call, kept, backend)


def _is_used(value: ir.Value) -> bool:
    return bool(value.name) and (value.is_graph_output() or bool(value.uses()))


def _has_supported_inputs(node: ir.Node, device: torch.device) -> bool:
    """Whether q, k, v and a mask are a node's only inputs, and of types with a fused kernel."""
    inputs = [input_of(node, place) for place in range(7)]
    q, k, v, mask = inputs[:4]
    if q is None or k is None or v is None or any(inputs[4:]):
        return False
    if any(rank(x) not in (3, 4) for x in (q, k, v)) or (mask is not None and rank(mask) is None):
        return False
    dtype = DTYPES.get(int(q.dtype or 0))
    if dtype not in _TYPES.get(device.type, ()) or not q.dtype == k.dtype == v.dtype:
        return False
    windows = [attribute(node, f"{side}_window_size", -1) for side in ("left", "right")]
    return (
        not attribute(node, "softcap", 0.0)
        and max(windows) < 0
        and fused_precision(dtype, attribute(node, "softmax_precision"))
    )


# -- which kernel ---------------------------------------------------------------------------------


def _backend(call: ir.Node, device: torch.device) -> str | None:
    """The fused kernel that torch itself would choose; None where it has none."""
    if device.type == "cpu":
        return CPU
    q, k, v, mask = call.inputs[:4]
    assert q is not None and k is not None and v is not None
    rows = mask is not None and _is_one_row(mask) and not attribute(call, "is_causal", 0)
    if q.dtype == ir.DataType.FLOAT or (mask is not None and not rows):
        return EFFICIENT  # of the kernels with a mask, only this one gives fully masked rows zeros
    queries, keys = attribute(call, "q_num_heads"), attribute(call, "kv_num_heads")
    sizes = [_sizes(x, heads) for x, heads in ((q, queries), (k, keys), (v, keys))]
    size = max(each[2] for each in sizes)
    heads = [each[0] or sizes[0][0] or sizes[1][0] or 1 for each in sizes]
    causal, dtype = bool(attribute(call, "is_causal", 0)), DTYPES[int(q.dtype or 0)]
    with torch.inference_mode(False), torch.enable_grad():
        tensors = [
            torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
            for shape in ((1, n, each[1], size + -size % 8) for n, each in zip(heads, sizes))
        ]
        return _choose(*tensors, masked=rows, causal=causal, grouped=heads[0] != heads[1])


def _choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    masked: bool,
    causal: bool,
    grouped: bool,
) -> str | None:
    mask = None
    if masked:
        mask = torch.ones((1, 1, 1, k.shape[2]), dtype=torch.bool, device=q.device)
        mask = mask.expand(1, 1, q.shape[2], k.shape[2])
    choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, enable_gqa=grouped)
    if choice == 0 and (masked or grouped):  # our kernel repeats heads and aligns the mask
        return EFFICIENT
    return _CHOICES.get(choice)


def _is_one_row(mask: ir.Value) -> bool:
    """Whether a boolean mask shows every query the same keys."""
    known = dims(mask) or ()
    return mask.dtype == ir.DataType.BOOL and len(known) >= 2 and known[-2] == 1


def _sizes(x: ir.Value, heads: int | None) -> tuple[int | None, int, int]:
    """The number of heads, the sequence length and the size of a head, or defaults."""
    shape = [size if isinstance(size, int) else None for size in dims(x) or ()]
    if len(shape) == 4:
        _, count, length, size = shape
    else:
        _, length, hidden = shape
        count = heads
        size = None if hidden is None or heads is None else hidden // heads
    return count, min(length or _LENGTH, _LENGTH), size or 64


# -- forward and backward --------------------------------------------------------------------------


def _forward_of(call: ir.Node) -> ir.Node | None:
    """The forward node of a gradient, if y is its only used output."""
    y = input_of(call, _Y)
    node = None if y is None else y.producer()
    if node is None or node.op_type != FORWARD or node.domain not in ("", COMPOSITES):
        return None
    same = [input_of(node, place) is input_of(call, place) for place in range(7)]
    only_y = node.graph is call.graph and not any(map(_is_used, node.outputs[1:]))
    options = [attribute(node, name) == attribute(call, name) for name in _OPTIONS]
    return node if all(same) and all(options) and only_y else None


def _write_forward(
    call: ir.Node, forward: ir.Node | None, backend: str, names: Names
) -> list[ir.Value]:
    """Insert AttentionForward in place of the forward node, or before the gradient."""
    place = call if forward is None else forward
    node = ir.Node(
        DOMAIN,
        "AttentionForward",
        call.inputs[:4],
        _attributes(call, backend),
        num_outputs=2 if backend == CPU else 4,
        name=names.fresh(f"{place.name}/forward"),
    )
    for value, wish in zip(node.outputs, ("y", "lse", "seed", "offset")):
        value.name = names.fresh(f"{node.name}/{wish}")
    graph = place.graph
    assert graph is not None
    graph.insert_before(place, node)
    y, lse = node.outputs[:2]
    lse.type = ir.TensorType(ir.DataType.FLOAT)
    if forward is None:
        known = call.inputs[_Y] or call.inputs[_DY]
        assert known is not None
        y.type, y.shape = known.type, known.shape
    else:
        take_over(forward.outputs[0], y)
        graph.remove(forward, safe=False)
        _detach_inputs(forward)
    return list(node.outputs)


def _write_backward(call: ir.Node, kept: list[ir.Value], backend: str) -> None:
    node = ir.Node(
        DOMAIN,
        "AttentionBackward",
        [call.inputs[_DY], *call.inputs[:4], *kept],
        _attributes(call, backend),
        num_outputs=3,
        name=call.name,
    )
    graph = call.graph
    assert graph is not None
    graph.insert_before(call, node)
    for value in node.outputs:
        value.name = ""
    for place, old in zip(attribute(call, "wrt"), call.outputs):
        if _is_used(old):
            take_over(old, node.outputs[place])
    graph.remove(call, safe=False)
    _detach_inputs(call)


def _write_standard(call: ir.Node) -> None:
    """Replace a call by Attention of the default domain, with q, k, v and the mask."""
    node = ir.Node("", FORWARD, call.inputs[:4], call.attributes.values(), name=call.name)
    graph = call.graph
    assert graph is not None
    graph.insert_before(call, node)
    take_over(call.outputs[0], node.outputs[0])
    graph.remove(call, safe=False)
    _detach_inputs(call)


def _attributes(call: ir.Node, backend: str) -> list[ir.Attr]:
    given: list[Any] = [call.attributes[name] for name in _OPTIONS if name in call.attributes]
    if "is_causal" not in call.attributes:
        given.append(ir.AttrInt64("is_causal", 0))
    return [*given, ir.AttrString("backend", backend)]


def _detach_inputs(node: ir.Node) -> None:
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
