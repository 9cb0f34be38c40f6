"""Run a function in several processes of one gloo group, and return what each of them returned."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.forked_processes import forking_context


def run_processes(
    function: Callable[..., Any], size: int, *arguments: Any, timeout: float = 900.0
) -> list[Any]:
    """`function(rank, *arguments)` of each rank, in its own process; an error fails the test."""
    context = forking_context()
    with TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_join_and_call, args=(folder, rank, size, timeout, function, arguments)
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout)
        hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        results = [_read(Path(folder, f"result-{rank}")) for rank in range(size)]
    failed = [text for good, text in results if not good]
    assert not hanging, f"ranks {hanging} still ran after {timeout} s\n{''.join(map(str, failed))}"
    assert not failed, "\n".join(map(str, failed))
    return [value for _, value in results]


def _read(path: Path) -> tuple[bool, Any]:
    if not path.exists():
        return False, f"{path.name}: the process ended without a result"
    good, value = pickle.loads(path.read_bytes())
    return good, value


def _join_and_call(
    folder: str, rank: int, size: int, timeout: float, function: Callable[..., Any], arguments: Any
) -> None:
    import torch
    from torch import distributed as dist

    warnings.simplefilter("default")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    limit = timedelta(seconds=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    try:
        result = True, function(rank, *arguments)
    except BaseException:
        result = False, f"rank {rank}\n{traceback.format_exc()}"
    path = Path(folder, f"result-{rank}")
    path.with_suffix(".part").write_bytes(pickle.dumps(result))
    path.with_suffix(".part").rename(path)
    if result[0]:
        dist.destroy_process_group()
