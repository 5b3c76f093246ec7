"""Tensors that are sent from one rank to another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import ArgumentError, BufferError
from ..execute import ABANDONED, PROGRESS, Context, Queue, Task
from .memory import Finish, plain, writing
from .works import Future, timed_out

_Work: Any = torch._C._distributed_c10d.Work
#: MPI's tags end here; the last one is ours
OWN_TAG = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)


class Message(_Work):
    """A message under way. peer: a rank of the group, or MPI.ANY_SOURCE. kept: must live until it has arrived."""

    runs_ahead, step = False, None

    def __init__(self, comm: Communicator, request: MPI.Request, peer: int, text: str, tensor: torch.Tensor, kept: object,
                 finishes: Sequence[Finish] = (), expected: int | None = None) -> None:  # fmt: skip
        super().__init__()
        self._context, self._comm, self._request, self._peer, self._text = Context.of(comm), comm, request, peer, text
        self._tensor, self._kept, self._finishes, self._expected = tensor, kept, finishes, expected
        self._status, self._error = MPI.Status(), None
        self._record = self._context.recorder.begin(text, "", ordered=False)
        self._record.plan = self
        self._is_over = False
        self._future: Future | None = None

    # For PyTorch.

    def is_completed(self) -> bool:
        """Whether it has arrived, or been sent."""
        return self.Test()

    def is_success(self) -> bool:
        """Whether that went well."""
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong."""
        return self._error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for it. Raises CollectiveTimeout after so long, or as long as the group's calls may take."""
        began, seconds = perf_counter(), timeout.total_seconds()
        if not self._is_over:
            self._context.wait_for([self if seconds <= 0 else _Limited(self, began + seconds)], self)
        if not self._is_over:
            raise timed_out(self._comm, seconds)
        if self._error is not None:
            raise self._error
        return True

    synchronize = block_current_stream = wait

    def result(self) -> list[torch.Tensor]:
        """The tensor."""
        return [self._tensor]

    def source_rank(self) -> int:
        """Whose message it is."""
        return int(self._status.Get_source()) if self._peer == MPI.ANY_SOURCE else self._peer

    _source_rank = source_rank

    def get_future(self) -> Future:
        """Completed with the tensor."""
        if self._future is None:
            self._future = Future(None, self.wait, self.result())
            PROGRESS.submit(Task(self._steps(), Queue(), then=self._complete))
        return self._future

    def _steps(self) -> Any:
        while not self.Test():
            yield self

    def _complete(self) -> None:
        assert self._future is not None
        self._future.complete(self.result(), self._error)

    # As a request of MPI's, and in reports.

    def Test(self) -> bool:
        """Whether it is over; then the tensor has it."""
        if not self._is_over and self._request.Test(self._status):
            self._end()
        return self._is_over

    def Wait(self) -> None:
        """Wait until it is over."""
        self._request.Wait(self._status)
        self._end()

    def _end(self) -> None:
        if self._is_over:
            return
        self._record.end()
        self._is_over = True
        if self._expected is not None and (got := self._status.Get_count(MPI.BYTE)) != self._expected:
            self._error = BufferError(f"{self._text}: expected {self._expected} bytes, got {got}")
        with torch.inference_mode():
            for finish in self._finishes if self._error is None else ():
                finish()

    @property
    def unfinished(self) -> bool:
        """False: other calls may go on where one message is given up."""
        if not self._is_over:
            ABANDONED.append(self._kept)
        return False

    def forget(self) -> None:
        """Nobody waits for it any more; its memory is never given back."""
        ABANDONED.append(self._kept)
        self._record.end()

    def where(self) -> str:
        """For a person."""
        return f"waiting {self._text}"

    def peer(self) -> int | None:
        """Whom it waits for."""
        return None if self._peer == MPI.ANY_SOURCE else self._peer


class _Limited:
    """A message, as a request that is over at some time."""

    def __init__(self, message: Message, until: float) -> None:
        self._message, self._until = message, until

    def Test(self) -> bool:
        """Whether it is over, or the time is."""
        return self._message.Test() or perf_counter() > self._until

    def Wait(self) -> None:
        """Wait for that."""
        while not self.Test():
            pass


def checked(tag: int, parts: int) -> int:
    """A tag that users may take. parts: how many communicators messages may travel on."""
    if not 0 <= tag < parts * OWN_TAG:
        raise ArgumentError(f"tag {tag}: mpicoll has tags from 0 to {parts * OWN_TAG - 1} here: MPI has {OWN_TAG + 1}")
    return tag


def send(comm: Communicator, tag: int, tensor: torch.Tensor, peer: int) -> Message:
    """Begin to send a tensor."""
    values = plain(tensor)
    nbytes = values.numel() * values.element_size()
    request = comm.Isend(_bytes(values, nbytes), peer, tag)
    return Message(comm, request, peer, f"to send {nbytes} bytes to rank {peer}", tensor, values)


def receive(comm: Communicator, tag: int, tensor: torch.Tensor, peer: int) -> Message:
    """Begin to receive one."""
    values, finishes = writing(tensor)
    nbytes = values.numel() * values.element_size()
    request = comm.Irecv(_bytes(values, nbytes), peer, tag)
    whose = "any rank" if peer == MPI.ANY_SOURCE else f"rank {peer}"
    return Message(comm, request, peer, f"to receive {nbytes} bytes from {whose}", tensor, values, finishes, nbytes)


def _bytes(values: torch.Tensor, nbytes: int) -> Any:
    if not values.is_cpu:
        raise BufferError(f"mpicoll sends tensors of the host from rank to rank, not of {values.device}: copy it first")
    return [MPI.memory.fromaddress(values.data_ptr(), nbytes), MPI.BYTE]
