"""Programs run on all ranks alike: rank 0 draws them, all run them, and all learn what was wrong on any."""

import faulthandler
import json
import random
import sys
import threading
import traceback
from collections import Counter
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, given, seed, settings
from mpi4py import MPI

import mpicoll

from .calls import Bound
from .drawing import FINISHES

#: seconds after which a program is taken to hang
PATIENCE = 120.0


def calls_of(program, *by: str) -> Counter:
    """{what the fields are: calls} that a program makes."""
    made = Counter()
    for step in (step for lane in program["lanes"] for step in lane if "method" in step):
        made[tuple(step[field] for field in by)] += step["times"] if step["form"] != "begin" else 1
    return made


class Family:
    """Communicators of some of the ranks, by how they are made; None where this rank is in none. Collective."""

    def __init__(self, world, check, timeout):
        rank, size = world.Get_rank(), world.Get_size()
        base = mpicoll.Communicator(world.Dup(), check=check, timeout=timeout)
        group = world.Get_group()
        ends = [size - 1, 0] if size > 1 else [0]
        chosen, edge = group.Incl([*range(size - 1, 0, -1)] or [0]), group.Incl(ends)
        self.members = {
            "world": base, "duplicate": base.Dup(), "reversed": base.Split(0, -rank), "parts": base.Split(rank % 2, rank),
            "created": base.Create(chosen), "group": base.Create_group(edge) if rank in ends else MPI.COMM_NULL,
            "alone": base.Split(rank),
        }  # fmt: skip
        for one in (group, chosen, edge):
            one.Free()

    def free(self):
        """In the order in which they were made."""
        for comm in self.members.values():
            if comm != MPI.COMM_NULL:
                comm.Free()


class Lane:
    """One thread's steps. failures: what was wrong."""

    def __init__(self, steps, family, rank):
        self.steps, self.family, self.rank = steps, family, rank
        self.under_way, self.failures = [], []

    def run(self):
        """All steps; what is still under way then is awaited."""
        try:
            for number, step in enumerate(self.steps):
                if "finish" in step:
                    self._finish(step)
                elif self.family.members[step["on"]] != MPI.COMM_NULL:
                    self._call(number, step, self.family.members[step["on"]])
            while self.under_way:
                self._finish({"finish": FINISHES[len(self.steps) % len(FINISHES)], "order": len(self.steps)})
        except Exception:
            self.failures.append(traceback.format_exc())

    def _call(self, number, call, comm):
        bound = Bound(call, comm)
        if call["form"] == "blocking":
            for repetition in range(call["times"]):
                bound.fill(repetition)
                bound.make(comm)
                self._look_at(number, bound)
            return
        bound.fill(0)
        handle = bound.make(comm)
        if call["form"] == "plan":
            handle.Start()
        self.under_way.append([number, bound, handle, 0])

    def _look_at(self, number, bound):
        problem = bound.problem()
        if problem:
            self.failures.append(f"step {number}, {bound.method} ({bound.call['form']}): {problem}")

    def _finish(self, step):
        """Await all that is under way, each rank in an order of its own; plans that are to run again are started again."""
        waiting, self.under_way = self.under_way, []
        shuffled = random.Random(step["order"] * 31 + self.rank).sample(waiting, len(waiting))
        plans = [handle for _, bound, handle, _ in shuffled if bound.call["form"] == "plan"]
        requests = [handle for _, bound, handle, _ in shuffled if bound.call["form"] != "plan"]
        _COMPLETE[step["finish"]](requests, plans)
        for number, bound, handle, repetition in waiting:
            self._look_at(number, bound)
            if bound.call["form"] != "plan":
                continue
            if repetition + 1 == bound.call["times"]:
                handle.Free()
                continue
            bound.fill(repetition + 1)
            handle.Start()
            self.under_way.append([number, bound, handle, repetition + 1])


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


_COMPLETE = dict(zip(FINISHES, (_one_by_one, _all_at_once, _tested, _tested_at_once, _any_first)))


class Fuzzer:
    """The ranks of a communicator that run programs together.

    programs: how many were run; made: calls by (method, form); words: calls by algorithm.
    """

    def __init__(self, comm: MPI.Intracomm, patience: float = PATIENCE):
        self.control, self.patience = MPI.Intracomm(comm.Dup()), patience
        self.families, self.made, self.words, self.programs = {}, Counter(), Counter(), 0

    def run(self, program) -> list[str]:
        """Run a program; what was wrong, of all ranks, on all ranks. Collective."""
        rank = self.control.Get_rank()
        keys = [(number, program["check"], program["timeout"]) for number in range(len(program["lanes"]))]
        if program["fresh"]:
            families = [Family(self.control, *key[1:]) for key in keys]
        else:
            families = [self.families.get(key) or self._family(key) for key in keys]
        lanes = [Lane(steps, family, rank) for steps, family in zip(program["lanes"], families)]
        with self._patience(program, lanes):
            _together([lane.run for lane in lanes])
            mine = [f"rank {rank}: {text}" for lane in lanes for text in lane.failures]
            failures = [text for texts in self.control.allgather(mine) for text in texts]
        if failures:
            self.families.clear()  # they may be in disorder
        elif program["fresh"]:
            for family in families:
                family.free()
        self.made += calls_of(program, "method", "form")
        self.programs += 1
        self.words += calls_of(program, "algorithm")
        return failures

    def _family(self, key):
        self.families[key] = Family(self.control, *key[1:])
        return self.families[key]

    def search(self, programs, examples: int, number: int | None = None, smaller: bool = True) -> str:
        """Run so many programs; the smallest that fails, as a text for a person, or "". Collective; rank 0 draws.

        number: a seed; None: the same programs each time. smaller: whether to look for a smaller one.
        """
        if self.control.Get_rank() > 0:
            while (program := self.control.bcast(None)) is not None:
                self.run(program)
            return self.control.bcast(None)
        text = ""
        try:
            _driven(self._attempt, programs, examples, number, smaller)
        except AssertionError as error:
            text = str(error)
        finally:
            self.control.bcast(None)
        return self.control.bcast(text)

    def _attempt(self, program):
        self.control.bcast(program)
        failures = self.run(program)
        if failures:
            raise AssertionError("\n".join([*failures, "the program:", json.dumps(program)]))

    def free(self):
        """Free all communicators."""
        for family in self.families.values():
            family.free()
        self.families.clear()
        self.control.Free()

    @contextmanager
    def _patience(self, program, lanes):
        """A program that hangs is printed, with what was wrong so far and what every thread does; the job ends."""

        def hangs():
            failures = "\n".join(text for lane in lanes for text in lane.failures)
            text = f"rank {self.control.Get_rank()}: no end after {self.patience} s of the program\n{json.dumps(program)}"
            print(f"{text}\n{failures}", file=sys.__stderr__, flush=True)
            faulthandler.dump_traceback(sys.__stderr__)
            MPI.COMM_WORLD.Abort(3)

        timer = threading.Timer(self.patience, hangs)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _driven(attempt, programs, examples, number, smaller):
    """Let Hypothesis draw programs, and make one that fails smaller."""
    phases = [Phase.generate, Phase.shrink] if smaller else [Phase.generate]
    options = settings(max_examples=examples, phases=phases, deadline=None, database=None, derandomize=number is None,
                       suppress_health_check=list(HealthCheck), report_multiple_bugs=False)  # fmt: skip
    test = options(given(programs)(attempt))
    (test if number is None else seed(number)(test))()


def _together(functions):
    """In threads, unless there is only one."""
    if len(functions) == 1:
        return functions[0]()
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
