"""The names in a checkpoint of what processes keep, and the states of another number of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onward.distributed.communicator import Communicator
from onward.distributed.compression.reducer_memory import redistribute
from onward.programs.program import Array
from onward.sessions.training.process_state import PREFIX

State = Mapping[str, Array]


def name_states(group: Communicator, kind: str, states: Sequence[State]) -> dict[str, Array]:
    """The states of this process, such as those of its reducers, under names of a checkpoint."""
    own = f"{PREFIX}{group.size}/{group.rank}/{kind}"
    return {
        f"{own}/{i}/{key}": array for i, state in enumerate(states) for key, array in state.items()
    }


def find_states(
    group: Communicator, kind: str, count: int, tensors: Mapping[str, Array]
) -> list[State]:
    """`count` states for this process; empty ones if the checkpoint has none of this kind.

    Those of the same process, if the checkpoint is of as many. What others kept is given out anew
    if it is of another number of them. In a file of one process, only what all have in common
    is for the others.
    """
    names: dict[int, dict[int, dict[str, str]]] = {}  # by rank, index and key
    saved = 0  # processes
    for name in tensors:
        if name.startswith(PREFIX):
            size, rank, of, index, key = name.removeprefix(PREFIX).split("/", 4)
            if of == kind:
                saved = int(size)
                names.setdefault(int(rank), {}).setdefault(int(index), {})[key] = name

    def read(rank: int, index: int) -> dict[str, Array]:
        return {key: tensors[name] for key, name in names[rank].get(index, {}).items()}

    if not names:
        return [{} for _ in range(count)]
    if saved == group.size and group.rank in names:
        return [read(group.rank, i) for i in range(count)]
    if len(names) == saved != group.size:
        states = [[read(rank, i) for rank in sorted(names)] for i in range(count)]
        return [redistribute(each, group.size)[group.rank] for each in states]
    common = [read(min(names), i) for i in range(count)]  # a file of another process
    return [{k: array for k, array in each.items() if k != "error"} for each in common]
