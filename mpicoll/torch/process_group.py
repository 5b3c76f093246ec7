"""A process group of PyTorch whose collectives are those of a `Communicator`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from mpi4py import MPI

from ..communicator import Communicator
from . import messages
from .calls import one_of
from .monitored import monitored_barrier
from .moves import Moves
from .reductions import Reductions
from .registration import ALIVE

_Group: Any = torch.distributed.ProcessGroup


class ProcessGroup(Moves, Reductions, _Group):
    """What PyTorch calls. options: as it makes the group with.

    A subclass of its ProcessGroup, not of its Backend, on all versions: that drops what a Work knows beside its end.
    """

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def __init__(self, comm: Communicator, options: Any) -> None:
        _Group.__init__(self, options.group_rank, options.group_size)
        self._take(comm)
        self._store, self._timeout = options.store, options.timeout
        self._name, self._description = options.group_id, ""
        ALIVE.append(self)

    def getBackendName(self) -> str:
        """Its name."""
        return "mpicoll"

    name = _get_backend_name = getBackendName

    def _get_backend(self, device: torch.device) -> Any:
        """What serves a device: newer versions ask it what it supports."""
        return self

    # PyTorch keeps these in backends, of which this group has none.

    def getGroupName(self) -> str:
        """By which PyTorch finds it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """PyTorch gives it a name."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What its maker says of it."""
        return self._description

    def setGroupDesc(self, text: str) -> None:
        """Its maker says what it is for."""
        self._description = text

    group_name, group_desc = property(getGroupName), property(getGroupDesc)
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    def get_group_store(self) -> Any:
        """Where its ranks may leave things for each other."""
        return self._store

    # Messages.

    def send(self, tensors: Any, peer: int, tag: int = 0) -> messages.Message:
        """Send a tensor to a rank."""
        return messages.send(self.comm, one_of(tensors), peer, messages.checked(tag))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> messages.Message:
        """Receive one."""
        return messages.receive(self.comm, one_of(tensors), peer, messages.checked(tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> messages.Message:
        """Receive one from any rank: the work's `source_rank`."""
        return messages.receive(self.comm, one_of(tensors), MPI.ANY_SOURCE, messages.checked(tag))

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come. timeout: a number is seconds."""
        limit = self._timeout if timeout is None else timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        monitored_barrier(self.comm, seconds, wait_all_ranks)

    # Its end.

    def shutdown(self) -> None:
        """Wait for what is under way, and free its communicators. Called by all ranks, the first time."""
        if self not in ALIVE:
            return
        ALIVE.remove(self)
        for level in reversed(self._levels):
            if level.comm:
                level.comm.Free()

    abort = shutdown
