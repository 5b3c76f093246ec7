"""A process group of PyTorch whose collectives are those of a `Communicator`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from mpi4py import MPI

from ..communicator import Communicator
from ..errors import MpicollError
from . import half, messages
from .calls import single_tensor
from .monitored import monitored_barrier
from .modes import show_calls
from .moves import Moves
from .reductions import Reductions
from .registration import ALIVE, DEVICES
from .rendezvous import forget, living_of, part_of, remember, seconds_of

_Group: Any = torch.distributed.ProcessGroup


@show_calls
class ProcessGroup(Moves, Reductions, _Group):
    """The interface that PyTorch calls. options: those with which PyTorch creates the group.

    It is a subclass of PyTorch's ProcessGroup, not of its Backend, on all versions: a Backend
    loses every attribute of a Work but its end.
    """

    supports_coalescing = False
    supports_time_estimate = False
    supports_splitting = True
    supports_shrinking = True

    def __init__(self, comm: Communicator, options: Any) -> None:
        _Group.__init__(self, options.group_rank, options.group_size)
        self._use(comm)
        half.teach()
        self._store = options.store
        self._timeout = options.timeout
        self._name = options.group_id
        self._description = ""
        ALIVE.append(self)

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices that it serves; PyTorch would look for backends of its own."""
        names = DEVICES if torch.cuda.is_available() else ("cpu",)
        return [torch.device(name) for name in names]

    def getBackendName(self) -> str:
        """The name of the backend."""
        return "mpicoll"

    name = getBackendName
    _get_backend_name = getBackendName

    def _get_backend(self, device: torch.device) -> Any:
        """The backend of a device: newer versions ask it what it supports."""
        return self

    # PyTorch keeps these in backends, of which this group has none.

    def getGroupName(self) -> str:
        """The name by which PyTorch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Set the name; PyTorch calls it."""
        self._name = name

    def getGroupDesc(self) -> str:
        """The description of the group."""
        return self._description

    def setGroupDesc(self, text: str) -> None:
        """Set the description."""
        self._description = text

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def get_group_store(self) -> Any:
        """The store in which its ranks exchange values."""
        return self._store

    # Messages.

    def send(self, tensors: Any, peer: int, tag: int = 0) -> messages.TensorMessage:
        """Send a tensor to a rank."""
        return messages.send(*self._channel(tag), single_tensor(tensors), peer)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> messages.TensorMessage:
        """Receive a tensor from a rank."""
        return messages.receive(*self._channel(tag), single_tensor(tensors), peer)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> messages.TensorMessage:
        """Receive a tensor from any rank: the work's `source_rank`."""
        return messages.receive(*self._channel(tag), single_tensor(tensors), MPI.ANY_SOURCE)

    def _channel(self, tag: int) -> tuple[Communicator, int]:
        """The communicator and MPI's tag for a tag of PyTorch.

        PyTorch's tags may be larger than MPI's: each level serves a part of their range.
        """
        messages.check_tag(tag, len(self._levels))
        number, rest = divmod(tag, messages.OWN_TAG)
        return self._levels[number].comm, rest

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier that names the ranks that did not come. timeout: a number is seconds."""
        limit = self._timeout if timeout is None else timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        monitored_barrier(self.comm, seconds, wait_all_ranks)

    # Limits.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls may make no progress. Local: all ranks should set the same."""
        self._timeout = timeout
        for level in self._levels:
            level.limit(seconds_of(timeout))

    _set_default_timeout = set_timeout

    # Groups made of it.

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of these ranks, in their order, with a store of its own.

        None on the other ranks, which need not call it.
        """
        if self._rank not in ranks:
            return None
        ranks = list(ranks)
        name = group_name or self._name_of_part("split", ranks)
        comm = part_of(self.comm, ranks)
        return self._made(ranks, comm, name, timeout, group_desc or f"{self._description}:split")

    def shrink(self, excluded: Sequence[int], flags: int = 0, opts: Any = None) -> ProcessGroup:
        """A group of the ranks that are not excluded; only these call it.

        Excluded ranks may be dead. flags: 1, PyTorch's SHRINK_ABORT, ends the calls under way; 0
        awaits them. This group serves no further call.
        """
        ranks = [rank for rank in range(self._size) if rank not in excluded]
        if not flags:
            for level in self._levels:
                level.finish()
        comm = living_of(self.comm, ranks)
        was_default = forget(self.comm)
        self.abort()
        if was_default:
            remember(comm)
        name = self._name_of_part("shrunk", ranks)
        return self._made(ranks, comm, name, None, f"{self._description}:shrunk")

    def _name_of_part(self, how: str, ranks: list[int]) -> str:
        return f"{self._name}:{how}:{'-'.join(map(str, ranks))}"

    def _made(
        self,
        ranks: list[int],
        comm: Communicator,
        name: str,
        timeout: timedelta | None,
        description: str,
    ) -> ProcessGroup:
        timeout = self._timeout if timeout is None else timeout
        options = SimpleNamespace(
            group_rank=comm.Get_rank(),
            group_size=comm.Get_size(),
            group_id=name,
            store=torch.distributed.PrefixStore(f"{name}/", self._store),
            timeout=timeout,
            global_ranks_in_group=ranks,
        )
        group = ProcessGroup(Communicator(comm, timeout=seconds_of(timeout)), options)
        group.setGroupDesc(description)
        return group

    # Its end.

    def shutdown(self) -> None:
        """Wait for what is under way, and free its communicators. Collective, the first time."""
        if self._forget():
            for level in reversed(self._levels):
                level.leave()

    def abort(self) -> None:
        """End the calls under way with an error on this rank, at once; serve no further call."""
        if not self._forget():
            return
        error = MpicollError(f"process group {self._name!r} was aborted on rank {self._rank}")
        for level in self._levels:
            level.withdraw(error)

    def _forget(self) -> bool:
        """Remove it from the living groups; False if it was not there."""
        if self not in ALIVE:
            return False
        ALIVE.remove(self)
        forget(self.comm)
        return True
