"""An attention with its gradient, by torch's fused kernels and by the call's body."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.composites import inline_calls
from onward.passes.pipelines import PREPARE, TRAINING
from onward.providers.torch.fused_attention import fuse_attention
from onward.providers.torch.lower import Lowered, lower
from onward.providers.torch.table import HOST, KERNELS

NAMES = ("y", "dq", "dk", "dv")


def training_model(
    feeds: dict[str, torch.Tensor], *, fixed: bool = False, **attributes: Any
) -> ir.Model:
    """y of q, k, v and perhaps a mask, and their gradients as a call; other sizes free."""
    op = OpBuilder()
    given = []
    for name, tensor in feeds.items():
        if name == "dy":
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        keys = "keys" if name != "q" else "length"
        shape: list[Any] = list(tensor.shape)
        if not fixed and name != "mask":
            shape[0], shape[-2] = "batch", keys
        given.append(op.input(name, dtype, shape))
    model = op.model(y=op.Attention(*given, **attributes))
    prepared = PREPARE(model)
    extend(prepared, {"y": "dy"}, ["q", "k", "v"], GRADIENTS, composites=True)
    return TRAINING(prepared)


def fused(model: ir.Model, device: str = "cpu") -> Lowered:
    """Lowered, with torch's kernels for the whole of it."""
    copy = model.clone()
    fuse_attention(copy, torch.device(device))
    return lower(copy.graph, KERNELS, HOST, torch.device(device))


def inlined(model: ir.Model, device: str = "cpu") -> Lowered:
    """Lowered, the gradient in standard operators."""
    copy = TRAINING(inline_calls(model.clone()))
    return lower(copy.graph, KERNELS, HOST, torch.device(device))


def tensors(
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...] | None = None,
    *,
    mask: Any = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, torch.Tensor]:
    """Random q, k, v, mask and dy; of three axes, heads have the query's size."""
    rng = np.random.default_rng(0)
    value = value or key
    y = (*query[:-1], value[-1]) if len(query) == 4 else query
    shapes = {"q": query, "k": key, "v": value}
    feeds = {n: torch.from_numpy(rng.normal(size=s)).to(device, dtype) for n, s in shapes.items()}
    if mask is not None:
        given = torch.as_tensor(mask)
        feeds["mask"] = given.to(device, given.dtype if given.dtype == torch.bool else dtype)
    feeds["dy"] = torch.from_numpy(rng.normal(size=y)).to(device, dtype)
    return feeds
