"""Compute the inputs that are derived from feeds on the device: see programs/derived_feeds.py.

Feeds in host memory are read there. For feeds on a GPU the host waits once: the number of rows that
are kept decides the shapes of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch

from onward.programs.derived_feeds import (
    Array,
    CountedLabels,
    DerivedFeeds,
    PackedRows,
    bucket_size,
)
from onward.programs.program import Layout
from onward.providers.torch.dtypes import Tensor
from onward.providers.torch.tensors import to_numpy


class DerivedTensors:
    """Computes the derived inputs of a graph from feeds that are tensors or arrays."""

    def __init__(self, layout: Layout, names: Collection[str]) -> None:
        self._names = names
        self.rows = DerivedFeeds(layout.derived, names).rows

    def compute(self, feeds: Mapping[str, Tensor | Array]) -> dict[str, Tensor | Array]:
        """The derived inputs: arrays where the feeds are in host memory, else tensors."""
        found: dict[str, Tensor | Array] = {}
        for rows in self.rows:
            given = {name: feeds[name] for name in rows.sources}
            devices = [each.device for each in given.values() if isinstance(each, Tensor)]
            device = next((each for each in devices if each.type != "cpu"), None)
            if device is not None:
                found |= compute_on_device(rows, given, device)
            else:
                found |= rows.compute({name: _to_array(each) for name, each in given.items()})
        return {name: value for name, value in found.items() if name in self._names}


def compute_on_device(
    rows: PackedRows, feeds: Mapping[str, Tensor | Array], device: torch.device
) -> dict[str, Tensor | Array]:
    """The two inputs of `rows` for tensors on a device; the host waits for one number."""
    tensors = {name: torch.as_tensor(x, device=device) for name, x in feeds.items()}
    counted = [_counted_rows(each, tensors[each.feed]) for each in rows.labels]
    if rows.mask is None:
        kept, is_exact = counted[0], torch.ones((), dtype=torch.bool, device=device)
    else:
        mask = tensors[rows.mask]
        kept = mask == 1
        is_exact = _is_exact(rows, mask, kept, counted)
    flat = kept.reshape(-1)
    count = int(torch.where(is_exact, flat.sum(), -1))  # the host waits here
    if count < 0:
        everything = torch.arange(flat.numel(), device=device)
        return {rows.gather: everything, rows.restore: everything}
    size = bucket_size(count, flat.numel(), rows.bucket)
    order = torch.argsort(~flat, stable=True)  # rows that are kept come first
    places = torch.arange(size, device=device)
    first = order[0] if rows.mask is not None and count else order[min(count, flat.numel() - 1)]
    gather = torch.where(places < count, order[:size], first)
    ranks = flat.cumsum(0) - 1
    restore = torch.where(flat, ranks, size)
    return {rows.gather: gather, rows.restore: restore}


def _is_exact(rows: PackedRows, mask: Tensor, tokens: Tensor, counted: list[Tensor]) -> Tensor:
    """Whether rows can be left out of this batch, as PackedRows.kept_rows decides it."""
    exact = (tokens | (mask == 0)).all() & tokens.any(dim=1).all()
    length = mask.shape[1]
    for each in counted:
        if each.shape != mask.shape:
            return torch.zeros_like(exact)
        exact &= ~(each & ~tokens).any()
    for position in rows.positions:
        if not -length <= position < length:
            return torch.zeros_like(exact)
        exact &= tokens[:, position].all()
    return exact


def _counted_rows(labels: CountedLabels, tensor: Tensor) -> Tensor:
    """Whether each row has a label that counts."""
    counted = tensor != labels.ignored
    if not labels.shift:
        return counted
    kept = torch.zeros_like(counted)
    if labels.shift > 0:
        kept[:, : -labels.shift] = counted[:, labels.shift :]
    else:
        kept[:, -labels.shift :] = counted[:, : labels.shift]
    return kept


def _to_array(feed: Tensor | Array) -> Array:
    return feed if isinstance(feed, np.ndarray) else to_numpy(feed)
