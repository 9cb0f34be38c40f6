"""Find a batch size: double it while a step fits the memory and more samples are done per second.

    program = compile_training(model, loss, optimizer)
    search = find_batch_size(program, lambda size: {"x": x[:size], "labels": labels[:size]})
    search.suggestion

A child process with a memory limit makes the steps (batch_size_worker.py): where a size does not
fit, the child fails, not this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import MemoryLimitExceeded, OnwardError, OptionError, WorkerDied
from onward.measure.tuning.tuning_options import trial_settings
from onward.programs.program_files import write_program
from onward.providers.choose import Asked, mentions_auto
from onward.providers.options import SessionOptions
from onward.runner.finders.free_memory import available_memory
from onward.sessions.training.training_program import TrainingProgram
from onward.settings import above, integer, optional
from onward.workers import messages
from onward.workers.worker import Worker

WORKER = "onward.runner.finders.batch_size_worker"
_SHARE = 0.8  # of the memory that is available: other processes need some
_GROWTH = 1.05  # times the samples per second, so that a larger batch is worth it


@dataclass(frozen=True)
class MeasuredSize:
    """A batch size, and what its steps took; with an `error`, no step was made.

    Attributes:
        size: rows of a batch
        seconds: of one step
        memory: the most that the process held in memory, in bytes; 0: not known
        error: why there was no step, such as the memory limit
    """

    size: int
    seconds: float = 0.0
    memory: int = 0
    error: str = ""

    @property
    def samples_per_second(self) -> float:
        return self.size / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class BatchSearch:
    """The sizes that were measured, and the one to train with."""

    sizes: tuple[MeasuredSize, ...]
    suggestion: int

    def __str__(self) -> str:
        lines = [f"batch size: {self.suggestion}", "   size  samples/s   ms/step    MB"]
        for each in self.sizes:
            row = f"{each.samples_per_second:9.1f} {1e3 * each.seconds:9.2f} {each.memory >> 20:5}"
            lines.append(f"{each.size:7}  {each.error or row}")
        return "\n".join(lines)


def find_batch_size(
    program: TrainingProgram,
    make_batch: Callable[[int], Mapping[str, Any]],
    *,
    smallest: int = 8,
    largest: int = 4096,
    memory: int | None = None,
    sess_options: Any = None,
    providers: Asked = None,
    timeout: float = 120.0,
) -> BatchSearch:
    """The batch size that trains most samples per second within the memory.

    Args:
        program: the compiled model, loss and optimizer
        make_batch: gives feeds of a number of rows
        smallest: the first size
        largest: the last one, such as the number of rows of the data
        memory: bytes that steps may take; None: 0.8 of what the machine has available
        sess_options: as in TrainingSession
        providers: as in TrainingSession; "auto" is measured on onnxruntime
        timeout: seconds of one size; a size that takes longer does not count
    """
    smallest, largest = integer(1)("smallest", smallest), integer(1)("largest", largest)
    memory, timeout = optional(integer(1))("memory", memory), above(0.0)("timeout", timeout)
    if program.neutral is None:
        raise OptionError(
            "the program was saved for onnxruntime: it cannot be measured here\n"
            "compile it again: compile_training(model, loss, optimizer)"
        )
    options = SessionOptions() if sess_options is None else SessionOptions.of(sess_options)
    if memory is None:
        free = available_memory()
        memory = None if free is None else int(_SHARE * free)
    with tempfile.TemporaryDirectory(prefix="onward-") as name, Worker(WORKER, "a trial") as worker:
        folder = Path(name) / "program"
        write_program(program.neutral, folder)
        request = {
            "do": "open",
            "program": str(folder),
            "settings": trial_settings(options),
            "providers": None if mentions_auto(providers) else providers,
            "memory": memory,
        }
        worker.ask(request, doing="opened the program", timeout=timeout)

        def measure(size: int) -> MeasuredSize:
            buffers: list[Any] = []
            feeds = [(n, messages.pack(f, buffers)) for n, f in make_batch(size).items()]
            step = {"do": "step", "feeds": feeds}
            try:
                reply, _ = worker.ask(step, buffers, timeout=timeout)
            except WorkerDied as error:  # an engine, or the system, ends it where memory is short
                raise MemoryLimitExceeded(
                    f"the trial of {size} rows died: it does not fit the memory\n{error}"
                ) from error
            return MeasuredSize(size, float(reply["seconds"]), int(reply["memory"]))

        return search_sizes(measure, smallest, max(smallest, largest))


def search_sizes(
    measure: Callable[[int], MeasuredSize], smallest: int, largest: int
) -> BatchSearch:
    """Double a size until a step fails or more rows are not faster; the smallest one must work.

    >>> seconds = {8: 0.1, 16: 0.12, 32: 0.23}
    >>> search = search_sizes(lambda size: MeasuredSize(size, seconds[size]), 8, 1024)
    >>> search.suggestion, [each.size for each in search.sizes]
    (16, [8, 16, 32])
    """
    best = measure(smallest)
    sizes, size = [best], smallest
    while size < largest:
        size = min(2 * size, largest)
        try:
            found = measure(size)
        except (OnwardError, MemoryError) as error:
            found = MeasuredSize(size, error=str(error).partition("\n")[0])
        sizes.append(found)
        if found.error or found.samples_per_second < _GROWTH * best.samples_per_second:
            break
        best = found
    return BatchSearch(tuple(sizes), best.size)
