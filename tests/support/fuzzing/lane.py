"""One thread of a program on one rank: its steps in order, and all that it has under way."""

import random
import traceback
from typing import Any, NamedTuple

from mpi4py import MPI

from mpicoll.execute import ScheduledCall

from .calls import Bound
from .drawing import FINISHES
from .forks import problem_of_child
from .lateness import LateStep
from .memory import Keepsake
from .neighbors import bind


class Entry(NamedTuple):
    """A call under way.

    number: of its step; handle: its request or plan; repetition: how often the plan was started.
    """

    number: int
    bound: Bound
    handle: Any
    repetition: int

    @property
    def is_plan(self):
        return self.bound.call["form"] == "plan"

    @property
    def is_scheduled(self):
        """Whether it is a plan of ours."""
        return isinstance(getattr(self.handle, "plan", self.handle), ScheduledCall)


class Lane:
    """One thread's steps. failures: what was wrong.

    any_order: whether each rank starts plans in an order of its own. unstarted: plans that were made.
    under_way: what is awaited by a later step; background: what a disturbance may test, until the end
    of the program. keepsakes: arrays that no call has any more.
    """

    def __init__(self, steps, family, rank, check, any_order):
        self.steps, self.family, self.rank = steps, family, rank
        self.check, self.any_order = check, any_order
        self.unstarted = []
        self.under_way = []
        self.background = []
        self.keepsakes = []
        self.failures = []

    def run(self):
        """All steps; what is still under way then is awaited."""
        try:
            for number, step in enumerate(self.steps):
                self._make(number, step)
            alone = FINISHES[:-1]  # a rank may have nothing left
            how = alone[len(self.steps) % len(alone)]
            last = {"finish": how, "order": len(self.steps), "all": True}
            while self.under_way or self.unstarted:
                self._finish(last)
        except Exception:
            self.failures.append(traceback.format_exc())

    def end(self):
        """After the disturbance: what was left to it is awaited, and all arrays are looked at."""
        try:
            for entry in self.background:
                entry.handle.Wait()
                self._look_at(entry.number, entry.bound)
            self.failures += filter(None, (one.problem() for one in self.keepsakes))
        except Exception:
            self.failures.append(traceback.format_exc())

    def _make(self, number, step):
        """A step: a call, or what a field names that only this step has."""
        if "method" in step:
            comm = self.family.member(step["on"])
            if comm != MPI.COMM_NULL:
                self._call(number, step, comm)
        elif "finish" in step:
            self._finish(step)
        elif "start" in step:
            self._start(step["start"])
        elif "fork" in step:
            self._fork()
        elif "keep" in step:
            self._keep(number, step)
        elif "late" in step:
            self._be_late(number, step)

    # Calls.

    def _call(self, number, call, comm):
        if comm.deterministic and call["op"]:  # the caller does not choose the order of operands
            call = {**call, "algorithm": None}
        bound = bind(call, comm)
        if call["form"] == "blocking":
            for repetition in range(call["times"]):
                bound.fill(repetition)
                bound.make(comm)
                self._look_at(number, bound)
            return
        bound.fill(0)
        entry = Entry(number, bound, bound.make(comm), 0)
        if entry.is_plan and call["stays"]:
            self.unstarted.append(entry)
        elif entry.is_plan:
            entry.handle.Start()
            self.under_way.append(entry)
        elif call["stays"]:
            self.background.append(entry)
        else:
            self.under_way.append(entry)

    def _look_at(self, number, bound):
        problem = bound.problem()
        if problem:
            self.failures.append(f"step {number}, {bound.method} ({bound.call['form']}): {problem}")

    def _start(self, order):
        """Start the plans that were only made so far, in the order of `any_order`."""
        entries, self.unstarted = self.unstarted, []
        for entry in self._in_order_of_starts(entries, order):
            entry.handle.Start()
        self.under_way += entries

    def _in_order_of_starts(self, entries, order):
        """In any order; but MPI's own plans in that of all ranks: MPICH takes each other's data else."""
        if not self.any_order:
            return entries
        shuffled = random.Random(order * 37 + self.rank).sample(entries, len(entries))
        of_mpi = iter([one for one in entries if not one.is_scheduled])
        return [one if one.is_scheduled else next(of_mpi) for one in shuffled]

    def _finish(self, step):
        """Await what is under way, each rank in an order of its own; plans may be started again."""
        self._start(step["order"])
        waiting = [one for one in self.under_way if step["all"] or _is_chosen(one, step["order"])]
        self.under_way = [one for one in self.under_way if one not in waiting]
        shuffled = random.Random(step["order"] * 31 + self.rank).sample(waiting, len(waiting))
        plans = [one.handle for one in shuffled if one.is_plan]
        requests = [one.handle for one in shuffled if not one.is_plan]
        self._complete(step["finish"], requests, plans)
        again = []
        for entry in waiting:
            self._look_at(entry.number, entry.bound)
            if not entry.is_plan:
                continue
            if entry.repetition + 1 == entry.bound.call["times"]:
                entry.handle.Free()
                continue
            entry.bound.fill(entry.repetition + 1)
            again.append(entry._replace(repetition=entry.repetition + 1))
        for entry in self._in_order_of_starts(again, step["order"]):
            entry.handle.Start()
        self.under_way += again

    def _complete(self, finish, requests, plans):
        """In turn: ranks wait in a call of MPI's own until the one before them is ready."""
        wire = self.family.wire
        in_turn = finish == "in turn"
        if in_turn and self.rank:
            wire.recv(source=self.rank - 1)
        _COMPLETE[finish](requests, plans)
        if in_turn and self.rank + 1 < wire.Get_size():
            wire.send(None, dest=self.rank + 1)

    # What is not a call.

    def _fork(self):
        entries = [*self.unstarted, *self.under_way, *self.background]
        rooms = [room for entry in entries for room in entry.bound.rooms]
        problem = problem_of_child(rooms, self.keepsakes, self.family.members["world"])
        if problem:
            self.failures.append(problem)

    def _keep(self, number, step):
        """Make shared arrays, and look at and forget some of those that there are."""
        comm = self.family.members["world"]
        self.keepsakes += [Keepsake.new(comm, number, nbytes) for nbytes in step["keep"]]
        many = min(len(self.keepsakes), step["drop"] % 4)
        dropped = random.Random(step["drop"]).sample(self.keepsakes, many)
        self.failures += filter(None, (one.problem() for one in dropped))
        self.keepsakes = [one for one in self.keepsakes if one not in dropped]

    def _be_late(self, number, step):
        late = LateStep(step, self.family.wire, self.check)
        late.run()
        self.failures += [f"step {number}: {problem}" for problem in late.problems if problem]
        self.keepsakes += late.keepsakes


def _is_chosen(entry, order):
    """Whether a step of this order awaits a call; the same on all ranks."""
    return random.Random(order + entry.number).random() < 0.5


# How requests and plans are completed.


def _one_by_one(requests, plans):
    for one in [*plans, *requests]:
        one.Wait()


def _all_at_once(requests, plans):
    MPI.Request.Waitall(requests)
    _one_by_one([], plans)


def _tested(requests, plans):
    left = [*requests, *plans]
    while left:
        left = [one for one in left if not one.Test()]


def _tested_at_once(requests, plans):
    while not MPI.Request.Testall(requests):
        pass
    _tested([], plans)


def _any_first(requests, plans):
    for _ in requests:
        MPI.Request.Waitany(requests)
    _one_by_one([], plans)


_COMPLETE = dict(zip(
    FINISHES, (_one_by_one, _all_at_once, _tested, _tested_at_once, _any_first, _one_by_one)
))  # fmt: skip
