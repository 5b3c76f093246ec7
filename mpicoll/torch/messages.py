"""Tensors that are sent from one rank to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import ArgumentError, BufferError, MpicollError
from ..execute import Context
from ..failure import ABANDONED, cancelled
from ..progress import PROGRESS, Queue, Task
from ..support.turn import Turn
from .memory import Finish, plain, writing
from .works import Future, timed_out

_TorchWork: Any = torch._C._distributed_c10d.Work
#: the largest tag of MPI: mpicoll uses it itself, users have those below
OWN_TAG = int(MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767)


class TensorMessage(_TorchWork):
    """A message under way.

    peer: a rank of the group, or MPI.ANY_SOURCE. text: what waits, in reports. memory: must live
    until the message has arrived. expected: how many bytes must arrive.
    """

    runs_ahead = False
    step = None

    def __init__(
        self,
        comm: Communicator,
        request: MPI.Request,
        peer: int,
        text: str,
        tensor: torch.Tensor,
        memory: object,
        finishes: Sequence[Finish] = (),
        expected: int | None = None,
    ) -> None:
        super().__init__()
        self._context = Context.of(comm)
        self._comm = comm
        self._request = request
        self._peer = peer
        self._text = text
        self._tensor = tensor
        self._memory = memory
        self._finishes = finishes
        self._expected = expected
        self._status = MPI.Status()
        self._error: BaseException | None = None
        self._record = self._context.recorder.begin(text, "", ordered=False)
        self._record.plan = self
        self._is_over = False
        #: to test the request: one thread at a time may complete it, others find it freed
        self._turn = Turn()
        self._future: Future | None = None

    # For PyTorch.

    def is_completed(self) -> bool:
        """Whether it has arrived, or been sent."""
        return self.Test()

    def is_success(self) -> bool:
        """Whether it has arrived, or been sent, without an error."""
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        """Its error."""
        return self._error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for it. Raises CollectiveTimeout after `timeout`, or after that of the group."""
        began = perf_counter()
        seconds = timeout.total_seconds()
        if not self._is_over:
            request = self if seconds <= 0 else _Limited(self, began + seconds)
            self._context.wait_for([request], self)
        if not self._is_over:
            raise timed_out(self._comm, seconds)
        if self._error is not None:
            raise self._error
        return True

    synchronize = wait
    block_current_stream = wait

    def result(self) -> list[torch.Tensor]:
        """The tensor."""
        return [self._tensor]

    def source_rank(self) -> int:
        """The rank that sent it."""
        return int(self._status.Get_source()) if self._peer == MPI.ANY_SOURCE else self._peer

    _source_rank = source_rank

    def get_future(self) -> Future:
        """A future that is completed with the tensor."""
        if self._future is None:
            self._future = Future(None, self.wait, self.result())
            PROGRESS.submit(Task(self._steps(), Queue(), then=self._complete))
        return self._future

    def _steps(self) -> Iterator[TensorMessage]:
        while not self.Test():
            yield self

    def _complete(self) -> None:
        assert self._future is not None
        self._future.complete(self.result(), self._error)

    # As a request of MPI, and in reports.

    def Test(self) -> bool:
        """Whether it is over; then the tensor has its data."""
        if not self._is_over and not self._turn.is_mine:
            self._turn.take(self._advance)
        return self._is_over

    def _advance(self) -> None:
        if self._is_over:
            return
        try:
            # a request that is over was seen by a call that an exception has interrupted
            if self._request and not self._request.Test(self._status):
                return
            self._finish()
        except MPI.Exception as error:
            self._error = self._explained(error)
        except Exception as error:
            self._error = error
        if self._request:
            ABANDONED.append(self._memory)
        self._record.end()
        self._is_over = True  # not earlier: other threads read the tensor then

    def _finish(self) -> None:
        """Check what has arrived, and write it into the tensor."""
        received = self._status.Get_count(MPI.BYTE)
        if self._expected is not None and received != self._expected:
            self._error = self._size_differs(str(received))
            return
        with torch.inference_mode():
            for finish in self._finishes:
                finish()

    def _explained(self, error: MPI.Exception) -> Exception:
        """The error of this message, where MPI has raised one."""
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            return self._size_differs("more")
        explained = self._context.explained(error)
        if explained is error:
            explained = MpicollError(f"rank {self._comm.Get_rank()}, {self._text}: {error}")
        explained.__cause__ = error
        return explained

    def _size_differs(self, received: str) -> BufferError:
        return BufferError(
            f"rank {self._comm.Get_rank()}, {self._text}: expected {self._expected} bytes, got "
            f"{received}: send and receive tensors of the same size"
        )

    @property
    def unfinished(self) -> bool:
        """False: other calls may go on when a message is given up."""
        if not self._is_over:
            ABANDONED.append(self._memory)
        return False

    def forget(self) -> None:
        """Give it up. A receive takes no later message; memory that MPI may use is never freed."""
        is_receive = self._expected is not None
        if left := cancelled([self._request]) if is_receive else [self._request]:
            ABANDONED.append((self._memory, left))
        self._record.end()

    def where(self) -> str:
        """The state, for reports."""
        return f"waiting {self._text}"

    def peer(self) -> int | None:
        """The rank that it waits for."""
        return None if self._peer == MPI.ANY_SOURCE else self._peer


class _Limited:
    """A request that is over with its message, or at some time."""

    def __init__(self, message: TensorMessage, until: float) -> None:
        self._message = message
        self._until = until

    def Test(self) -> bool:
        """Whether the message is over, or the time has come."""
        return self._message.Test() or perf_counter() > self._until


def check_tag(tag: int, communicators: int) -> None:
    """Raise ArgumentError unless messages on so many communicators may have this tag."""
    end = communicators * OWN_TAG
    if not 0 <= tag < end:
        raise ArgumentError(
            f"tag {tag}: mpicoll has tags from 0 to {end - 1} here: MPI has {OWN_TAG + 1}"
        )


def send(comm: Communicator, tag: int, tensor: torch.Tensor, peer: int) -> TensorMessage:
    """Begin to send a tensor."""
    values = plain(tensor)
    nbytes = values.numel() * values.element_size()
    request = comm.Isend(_bytes(values, nbytes), peer, tag)
    text = f"to send {nbytes} bytes to rank {peer}"
    return TensorMessage(comm, request, peer, text, tensor, values)


def receive(comm: Communicator, tag: int, tensor: torch.Tensor, peer: int) -> TensorMessage:
    """Begin to receive a tensor."""
    values, finishes = writing(tensor)
    nbytes = values.numel() * values.element_size()
    request = comm.Irecv(_bytes(values, nbytes), peer, tag)
    source = "any rank" if peer == MPI.ANY_SOURCE else f"rank {peer}"
    text = f"to receive {nbytes} bytes from {source}"
    return TensorMessage(comm, request, peer, text, tensor, values, finishes, nbytes)


def _bytes(values: torch.Tensor, nbytes: int) -> Any:
    if not values.is_cpu:
        raise BufferError(
            f"mpicoll sends tensors of the host from rank to rank, not of {values.device}: "
            "copy it first"
        )
    return [MPI.memory.fromaddress(values.data_ptr(), nbytes), MPI.BYTE]
