"""Cluster: the links between processes, and how long a collective takes over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from onward.distributed.parallel import Parallel
from onward.distributed.planner.step_collectives import Collective, Group, group_size
from onward.distributed.ring_bytes import Kind
from onward.settings import above, check_fields, choice, instance_of, integer, number, true_or_false

LinkName = Literal["inside", "between"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A connection: seconds before the first byte, then bytes in a second."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        check_fields(self, latency=number(0.0), bandwidth=above(0.0, infinite=True))

    def seconds(self, steps: int, nbytes: float) -> float:
        """The time of `steps` messages one after the other, of `nbytes` together."""
        return steps * self.latency + nbytes / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Processes on nodes: ranks 0 to per_node - 1 are on the first one, and so on.

    Attributes:
        per_node: processes on a node
        inside: the link of each process to others on its node
        between: the link of each node to other nodes, which its processes share
        algorithm: of a collective over several nodes: "ring" of all processes, or "hierarchical":
            first inside each node, then between the nodes
        overlap: whether processes compute while they send; on a CPU whose cores are all busy, with
            gloo, they do not
    """

    per_node: int = 1 << 30
    inside: Link = Link()
    between: Link = Link()
    algorithm: Literal["ring", "hierarchical"] = "ring"
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            per_node=integer(1),
            inside=instance_of(Link, "Link(latency=1e-5, bandwidth=1e9)", "a Link"),
            between=instance_of(Link, "Link(latency=1e-5, bandwidth=1e9)", "a Link"),
            algorithm=choice("ring", "hierarchical"),
            overlap=true_or_false,
        )


@dataclass(frozen=True)
class GroupPlaces:
    """How the processes of a group are spread: its size, those on one node, rivals for the link."""

    size: int
    on_node: int
    rivals: int  # groups of the same kind whose messages leave the node at the same time

    @property
    def nodes(self) -> int:
        return math.ceil(self.size / self.on_node)


def place_group(parallel: Parallel, group: Group, cluster: Cluster) -> GroupPlaces:
    """Where the processes of a group are: shards side by side, copies `shard` ranks apart."""
    size, room = group_size(parallel, group), cluster.per_node
    if group == "copies" and parallel.shard > 1:
        on_node = min(size, max(1, room // parallel.shard))
        return GroupPlaces(size, on_node, min(parallel.shard, room))
    return GroupPlaces(size, min(size, room), 1)


def collective_seconds(each: Collective, parallel: Parallel, cluster: Cluster) -> float:
    """How long a collective takes when nothing else uses its links."""
    places = place_group(parallel, each.group, cluster)
    if places.size == 1:
        return 0.0
    if places.nodes == 1:
        return _ring(each.kind, each.nbytes, places.size, cluster.inside)
    if cluster.algorithm == "hierarchical" and places.on_node > 1:
        return _hierarchical(each, places, cluster)
    # a ring over all processes: the slowest of its links, with the messages of rival groups
    shared = each.nbytes * places.rivals
    crossing = _ring(each.kind, shared, places.size, cluster.between)
    return max(crossing, _ring(each.kind, each.nbytes, places.size, cluster.inside))


def link_of(each: Collective, parallel: Parallel, cluster: Cluster) -> LinkName:
    """The link that a collective occupies: that between nodes, if it leaves its node."""
    return "inside" if place_group(parallel, each.group, cluster).nodes == 1 else "between"


def _ring(kind: Kind, nbytes: float, size: int, link: Link) -> float:
    """n - 1 messages of B / n bytes; an all_reduce has twice as many."""
    rounds = 2 if kind == "all_reduce" else 1
    return link.seconds(rounds * (size - 1), rounds * nbytes * (size - 1) / size)


def _hierarchical(each: Collective, places: GroupPlaces, cluster: Cluster) -> float:
    """Inside a node, each process sums or gathers its part; parts travel between nodes in parallel.

    All parts of a node together are the whole vector, and share the node's link. The vector is sent
    in pieces, so that both links are busy at once: latencies add up, of the rest the longer counts.
    """
    rounds = 2 if each.kind == "all_reduce" else 1
    inside, between = cluster.inside, cluster.between
    latency = (places.on_node - 1) * inside.latency + (places.nodes - 1) * between.latency
    within = _sent(each, places.on_node) / inside.bandwidth
    across = _sent(each, places.nodes) * places.rivals / between.bandwidth
    return rounds * latency + max(within, across)


def _sent(each: Collective, size: int) -> float:
    return (2 if each.kind == "all_reduce" else 1) * each.nbytes * (size - 1) / size
