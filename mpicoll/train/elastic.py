"""Going on with fewer ranks: what a training does when some of its ranks have died."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy
from mpi4py import MPI

from ..communicator import Communicator, all_agree, deaths, note_missing, outnumbers, refusal
from ..errors import ArgumentError, LaunchError, RankFailure
from ..support.arrays import Array, module_of
from .parallel import (
    WINDOW,
    Backup,
    LocalSteps,
    RecoveryPlan,
    Remainder,
    ShardsLost,
    Strategy,
    bad_gradient,
)

Result = TypeVar("Result")
_READING = "ranks died while the state of others that died was read from a checkpoint"


def living(world: MPI.Intracomm) -> Communicator:
    """A Communicator of some ranks, or of those that live, where some die while it is made.

    Collective over these.

    Parameters
    ----------
    world : Intracomm
        mpi4py's own, of all ranks.

    Returns
    -------
    Communicator
        Of `world`, or of fewer ranks.

    Raises
    ------
    RankFailure
        Where ranks send heartbeats and no more than half of them are left.
    """
    while True:
        comm = None
        with suppress(RankFailure):
            comm = Communicator(world)
        if all_agree(world, comm is not None) and comm is not None:
            return comm
        before = world
        world = MPI.Intracomm(world.Shrink())
        note_missing(world, before)
        _require_majority(before, world)


def surviving(
    comm: Communicator, act: Callable[[Communicator], Result]
) -> tuple[Result, Communicator]:
    """What act(comm) returns once it succeeds on all live ranks, with fewer ranks if some died.

    Parameters
    ----------
    comm : Communicator
        Of the ranks that begin. Collective over those that live.
    act : callable
        A function of a Communicator, which may raise RankFailure, on any rank, anywhere.

    Returns
    -------
    (object, Communicator)
        What act returned, and the communicator of that time.

    Raises
    ------
    RankFailure
        Where part of a training's state was lost; where ranks send heartbeats and no more than half
        of them are left.
    """
    while True:
        result: Any = None
        try:
            result = act(comm)
            good = True
        except RankFailure as failure:
            good = False
            if isinstance(failure, ShardsLost):  # on all ranks
                raise
        if all_agree(comm, good):
            return result, comm
        before = comm
        comm = comm.shrink()
        _require_majority(before, comm)


def _require_majority(before: MPI.Intracomm, comm: MPI.Intracomm) -> None:
    if not outnumbers(before, comm):
        sizes = f"{comm.Get_size()} of {before.Get_size()} ranks are left"
        raise RankFailure(
            f"elastic: {sizes}, and with heartbeats more than half must be: the others may live, "
            "and this host may be the one that is cut off. Begin again from a checkpoint"
        )


def require(comm: Communicator, parameters: Array) -> None:
    """Raise, on all ranks, where lost ranks cannot be survived, and say why."""
    if problem := refusal():
        raise LaunchError(f"elastic: lost ranks cannot be survived here. {problem}")
    if comm.Get_size() == 1 and not deaths():  # the last of several may well go on
        raise ArgumentError(
            "elastic: expected at least 2 ranks, got 1: start more, or leave it out"
        )
    if module_of(parameters) is not numpy:
        raise ArgumentError(
            "elastic: expected a model in host memory, got one on a device; leave it out, or use "
            "the CPU"
        )


class Recovered(NamedTuple):
    """What a training has after ranks have died."""

    #: on the ranks that live
    strategy: Strategy
    #: losses of the steps that its state has, from the training's first on; None: the fit begins
    #: again, with its base
    losses: list[float] | None
    #: why the base must come from a checkpoint, where it must
    lost: ShardsLost | None


def recover(
    old: Strategy,
    comm: Communicator,
    make: Callable[[Communicator], Strategy],
    has_checkpoint: bool,
) -> Recovered:
    """A strategy on the ranks that live, with the newest state that all of them can have.

    Collective. make: gives a new strategy for the model. Where shards were lost with their copies
    and there is no checkpoint, ShardsLost is raised, on all ranks; BadGradient where the last
    update was made from gradients that were not finite.
    """
    begin = perf_counter()
    if names := sorted({name for bad in comm.allgather(old.update.bad) for name in bad}):
        raise bad_gradient(old.update.optimizer.steps, names)
    steps = min(comm.allgather(len(old.meter.steps)))
    state: _HandingReplicas | _HandingCopies
    if isinstance(old, LocalSteps):
        state = _HandingReplicas(old, comm)
    else:
        state = _HandingCopies(old, comm)
    if state.lost is not None and not has_checkpoint:
        raise state.lost
    _detach(old)
    new = make(comm)
    new.meter.adopt(old.meter, steps)
    assert old.survival is not None and new.survival is not None
    losses = None
    recovery: dict[str, Any] = {"ranks": comm.Get_size(), "step": 0}
    where = "from a checkpoint"
    if state.lost is not None:
        new.survival.whole = False
    else:
        losses = state.hand_over(new)
        recovery["step"] = len(losses)
        where = f"after step {len(losses)}"
        if state.is_open:
            losses = None
    comm.Barrier()
    recovery["seconds"] = perf_counter() - begin
    new.survival.recoveries = [*old.survival.recoveries, recovery]
    if comm.Get_rank() == 0:
        taken = f"{recovery['ranks']} go on {where}, which took {recovery['seconds']:.2f} s"
        print(f"mpicoll: ranks died; {taken}", file=sys.stderr, flush=True)
    return Recovered(new, losses, state.lost)


class _HandingReplicas:
    """Each rank that lives goes on with its own replica."""

    def __init__(self, old: LocalSteps, comm: Communicator) -> None:
        self._former = old.former()
        fits = old.fits
        everyone = comm.allgather((fits.is_secure, fits.whole))
        #: whether the base of the fit is still to be secured
        self.is_open = not all(is_secure for is_secure, _ in everyone)
        #: why the base must come from a checkpoint, where it must
        self.lost: ShardsLost | None = None
        if not all(whole for _, whole in everyone):
            self.lost = ShardsLost(_READING)

    def hand_over(self, new: Strategy) -> list[float]:
        """Give the state to a new strategy; returns the losses of its steps."""
        assert isinstance(new, LocalSteps)
        return new.take_over(self._former)


class _HandingCopies:
    """The newest generation that all can have, of their own and of the copies of the dead."""

    def __init__(self, old: Strategy, comm: Communicator) -> None:
        assert old.backup is not None
        self._source, self._plan, self.lost = _planned(old.backup, comm)
        self.is_open = self._plan is not None and self._plan.is_open

    def hand_over(self, new: Strategy) -> list[float]:
        """As that of replicas."""
        assert self._plan is not None and new.backup is not None
        losses, updates = _hand_over(self._source, self._plan, new)
        _take_over_residuals(self._source, self._plan, updates, new)
        new.backup.before = self._source
        new.backup.costs = self._source.costs
        return losses


def _detach(old: Strategy) -> None:
    """Give the model and the optimizer memory of their own, until a strategy replaces it."""
    old.model.lend(old.reducer.plain_now)
    old.model.to(dtype=old.update.values.dtype)  # that of the arithmetic
    old.update.optimizer.state = {}
    old.update.optimizer.steps = 0


def _planned(
    newest: Backup, comm: Communicator
) -> tuple[Backup, RecoveryPlan | None, ShardsLost | None]:
    """Which backup to take, and what of it; or why there is none. Alike on all ranks."""
    levels = {level.size: level for level in (newest, newest.before) if level is not None}
    everyone = comm.allgather({size: level.known() for size, level in levels.items()})
    lost: ShardsLost | None = None
    for size in sorted({size for statuses in everyone for size in statuses}):
        if not all(size in statuses for statuses in everyone):
            continue
        try:
            plan = levels[size].plan([statuses[size] for statuses in everyone])
        except ShardsLost as failure:
            lost = lost or failure
        else:
            if plan is not None:
                return levels[size], plan, None
    return newest, None, lost or ShardsLost(_READING)


def _take_over_residuals(
    source: Backup, plan: RecoveryPlan, updates: int, new: Strategy
) -> None:
    """Let the ranks that live owe what the codes of all have lost up to a generation.

    Each takes its own residuals, and those of a rank that died from its copy. Where no codes are
    sent any more, all take the sum. updates: see `Backup.owed`.
    """
    comm = new.comm
    reducer = new.reducer
    living = comm.allgather(source.rank)
    if reducer.feedback is not None:
        for residuals in source.owed(plan, updates, living):
            reducer.feedback.add(residuals)
        return
    owed = list(source.owed(plan, updates, living))
    if comm.allreduce(len(owed)):
        total = sum(owed, numpy.zeros(reducer.layout.elements, "f4"))
        for low in range(0, len(total), WINDOW):
            comm.Allreduce(MPI.IN_PLACE, total[low : low + WINDOW])
        reducer.remainder = Remainder(reducer.layout, total)


def _hand_over(source: Backup, plan: RecoveryPlan, new: Strategy) -> tuple[list[float], int]:
    """Give a generation to a new strategy; returns the losses of its steps, and its updates."""
    comm = new.comm
    server = min(plan.servers.values())
    counts = source.counts(plan) if comm.Get_rank() == server else None
    losses: list[float]
    losses, (updates, scale) = comm.bcast(counts, root=server)
    source.hand_over(comm, plan, new.update, updates)
    if new.update.scale is not None and scale is not None:
        new.update.scale.restore(scale)
    return losses, updates
