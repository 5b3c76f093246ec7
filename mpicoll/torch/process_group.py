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
from .calls import one_of
from .monitored import monitored_barrier
from .modes import show_calls
from .moves import Moves
from .reductions import Reductions
from .registration import ALIVE, DEVICES
from .rendezvous import forget, living_of, part_of, remember, seconds_of

_Group: Any = torch.distributed.ProcessGroup


@show_calls
class ProcessGroup(Moves, Reductions, _Group):
    """What PyTorch calls. options: as it makes the group with.

    A subclass of its ProcessGroup, not of its Backend, on all versions: that drops what a Work knows beside its end.
    """

    supports_coalescing = supports_time_estimate = False
    supports_splitting = supports_shrinking = True

    def __init__(self, comm: Communicator, options: Any) -> None:
        _Group.__init__(self, options.group_rank, options.group_size)
        self._take(comm)
        half.teach()
        self._store, self._timeout = options.store, options.timeout
        self._name, self._description = options.group_id, ""
        ALIVE.append(self)

    @property
    def _device_types(self) -> list[torch.device]:
        """What it serves; PyTorch would look for backends of its own."""
        return [torch.device(device) for device in DEVICES if device == "cpu" or torch.cuda.is_available()]

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
        return messages.send(*self._way(tag), one_of(tensors), peer)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> messages.Message:
        """Receive one."""
        return messages.receive(*self._way(tag), one_of(tensors), peer)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> messages.Message:
        """Receive one from any rank: the work's `source_rank`."""
        return messages.receive(*self._way(tag), one_of(tensors), MPI.ANY_SOURCE)

    def _way(self, tag: int) -> tuple[Communicator, int]:
        """The communicator and MPI's tag for a tag of PyTorch's, which may be larger than MPI's: each level has its part."""
        number, rest = divmod(messages.checked(tag, len(self._levels)), messages.OWN_TAG)
        return self._levels[number].comm, rest

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come. timeout: a number is seconds."""
        limit = self._timeout if timeout is None else timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        monitored_barrier(self.comm, seconds, wait_all_ranks)

    # Limits.

    def set_timeout(self, timeout: timedelta) -> None:
        """How long its calls may make no progress from now on. Local: all ranks should say the same."""
        self._timeout = timeout
        for level in self._levels:
            level.limit(seconds_of(timeout))

    _set_default_timeout = set_timeout

    # Groups made of it.

    def split_group(
        self, ranks: Sequence[int], timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: Any = None,
    ) -> ProcessGroup | None:  # fmt: skip
        """A group of these of its ranks, in their order; None on the others, which need not call. The store is its own."""
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{'-'.join(map(str, ranks))}"
        comm = part_of(self.comm, list(ranks))
        return self._made(list(ranks), comm, name, timeout, group_desc or f"{self._description}:split")

    def shrink(self, excluded: Sequence[int], flags: int = 0, opts: Any = None) -> ProcessGroup:
        """A group of the ranks that are not excluded; these alone call it. The excluded ones may have died.

        flags: 1, PyTorch's SHRINK_ABORT, ends what is under way; else it is awaited. This group serves no further call.
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
        return self._made(ranks, comm, f"{self._name}:shrunk:{'-'.join(map(str, ranks))}", None, f"{self._description}:shrunk")

    def _made(self, ranks: list[int], comm: Communicator, name: str, timeout: timedelta | None, text: str) -> ProcessGroup:
        store = torch.distributed.PrefixStore(f"{name}/", self._store)
        timeout = self._timeout if timeout is None else timeout
        options = SimpleNamespace(group_rank=comm.Get_rank(), group_size=comm.Get_size(), group_id=name, store=store,
                                  timeout=timeout, global_ranks_in_group=ranks)  # fmt: skip
        made = ProcessGroup(Communicator(comm, timeout=seconds_of(timeout)), options)
        made.setGroupDesc(text)
        return made

    # Its end.

    def shutdown(self) -> None:
        """Wait for what is under way, and free its communicators. Called by all ranks, the first time."""
        if self._forget():
            for level in reversed(self._levels):
                level.leave()

    def abort(self) -> None:
        """Have the calls under way end with an error on this rank, at once; no further one is served."""
        if self._forget():
            for level in self._levels:
                level.withdraw(MpicollError(f"process group {self._name!r} was aborted on rank {self._rank}"))

    def _forget(self) -> bool:
        """Whether it was there."""
        if self not in ALIVE:
            return False
        ALIVE.remove(self)
        forget(self.comm)
        return True
