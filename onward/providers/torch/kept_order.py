"""Let Inductor's code run in the order of the graph.

Inductor fuses nodes, places what it fused where the first of its nodes was, and what that needs
before it. So it runs other nodes later than the graph does: gradients of parameters at the end of a
step, which keep what they are computed from; copies from the host right before their result is
read. Here a fused kernel runs where the last of its nodes was.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from torch._inductor import custom_graph_pass

# torch 2.11 takes functions only, and then compiles again in every process
_SchedulerPass: Any = getattr(custom_graph_pass, "CustomSchedulerPass", object)


class KeptOrder(_SchedulerPass):  # type: ignore[misc]
    """Sorts the kernels of Inductor's scheduler, after they were fused."""

    def __call__(self, nodes: Sequence[Any]) -> list[Any]:
        return sort_kernels(nodes)

    def uuid(self) -> Any:
        """The key of compiled code in Inductor's cache."""
        return custom_graph_pass.get_hash_for_files((__file__,))


def sort_kernels(nodes: Sequence[Any]) -> list[Any]:
    """Nodes of Inductor's scheduler, each as early as the last of its nodes was in the graph.

    Nodes have the `max_order` of what they are fused of, the names of the buffers that they write,
    and the names of those that have to be written before.
    """
    writers = {
        name: number for number, node in enumerate(nodes) for name in node.get_buffer_names()
    }
    readers: list[list[int]] = [[] for _ in nodes]
    missing = []  # how many nodes a node waits for
    for number, node in enumerate(nodes):
        awaited = {writers.get(each.name, number) for each in node.unmet_dependencies} - {number}
        missing.append(len(awaited))
        for each in awaited:
            readers[each].append(number)
    ready = [(nodes[number].max_order, number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(nodes[number])
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (nodes[reader].max_order, reader))
    assert len(found) == len(nodes)
    return found
