"""Programs run on all ranks alike: rank 0 draws them, all run them, and all learn what was wrong on any."""

import faulthandler
import json
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from mpi4py import MPI

from mpicoll.execute import Context

from .communicators import Family
from .disturbances import Disturbance
from .drawing import STEPS
from .lane import Lane
from .neighbors import GRAPH

#: seconds after which a program is taken to hang
PATIENCE = 120.0
#: what is said of communicators of which the next call would not end
OUT_OF_STEP = "counts of calls by ranks"
#: families that are kept for later programs
_MOST_FAMILIES = 8


def steps_of(program):
    """All steps, and the calls that steps consist of."""
    for lane in program["lanes"]:
        for step in lane:
            yield step
            yield from step.get("calls", ())


def calls_of(program, *by: str) -> Counter:
    """{what the fields are: calls} that a program makes."""
    made = Counter()
    for step in (step for step in steps_of(program) if "method" in step):
        made[tuple(step[field] for field in by)] += step["times"] if step["form"] != "begin" else 1
    return made


def axes_of(program) -> Counter:
    """What a program has beside plain calls."""
    found = Counter({f"by {program['by']}, {program['doing']}": 1, f"threads: {len(program['lanes'])}": 1,
                     f"sums: {program['sums'] or 'ordinary'}": 1, f"starts: {program['starts']}": 1})  # fmt: skip
    for step in steps_of(program):
        if "method" not in step:
            found[next(name for name in STEPS if name in step)] += 1
            continue
        found[f"on {'neighbours' if step['on'].startswith(GRAPH) else step['on']}"] += 1
        found.update(f"memory: {memory}" for memory in set(step["memory"]))
        if step.get("compression"):
            found[f"compression: {step['compression']}"] += 1
        if step["empty"]:
            found["empty contributions of another type"] += 1
        if step["stays"]:
            found["plans started later" if step["form"] == "plan" else "requests left to others"] += 1
    return found


class Fuzzer:
    """The ranks of a communicator that run programs together.

    programs: how many were run; made: calls by (method, form); words: calls by algorithm; axes: how
    many programs, steps and calls had what; checked: calls by when they were compared. running: a file that
    has the program under way, for jobs that are ended.
    """

    def __init__(self, comm: MPI.Intracomm, patience: float = PATIENCE, running: Path | None = None):
        self.control, self.patience = MPI.Intracomm(comm.Dup()), patience
        self.families, self.made, self.words, self.programs = {}, Counter(), Counter(), 0
        self.axes, self.checked = Counter(), Counter()
        self._running = running
        #: communicators that are out of step, of which was told
        self._told = set()
        self._first = ""  # what was said of the first program of a search that failed

    def run(self, program) -> list[str]:
        """Run a program; what was wrong, of all ranks, on all ranks. Collective."""
        rank = self.control.Get_rank()
        families = self._families(program)
        for family, steps in zip(families, program["lanes"]):
            family.prepare(steps)
        lanes = [Lane(steps, family, rank, program["check"], program["starts"] == "any")
                 for steps, family in zip(program["lanes"], families)]  # fmt: skip
        disturbance = Disturbance(program["doing"], families[0].members["world"], lanes)
        with self._patience(program, lanes):
            with disturbance.going_on(program["by"]):
                _together([lane.run for lane in lanes])
            for lane in lanes:
                lane.end()
            texts = [text for one in (*lanes, disturbance) for text in one.failures]
            mine = [f"rank {rank}: {text}" for text in texts]
            failures = [text for texts in self.control.allgather(mine) for text in texts]
            failures += self._out_of_step()
        if any("Traceback" in text or OUT_OF_STEP in text for text in failures):
            self.families.clear()  # they may be in disorder
        elif not program["fresh"]:
            for family in families:
                family.tidy()
        else:
            for family in families:
                family.free()
        self._count(program)
        return failures

    def _out_of_step(self):
        """Communicators on which ranks have counted different numbers of calls: the next one would never end."""
        mine = {one.channel.own_name: (one.recorder.places, repr(one.calls))
                for one in Context.living() if not one.broken}  # fmt: skip
        counted = {}
        for rank, counts in enumerate(self.control.allgather(mine)):
            for name, count in counts.items():
                counted.setdefault(name, {}).setdefault(count, []).append(rank)
        apart = {name: counts for name, counts in counted.items() if len(counts) > 1 and name not in self._told}
        self._told.update(apart)
        return [f"{name}: {OUT_OF_STEP}: {counts}" for name, counts in apart.items()]

    def _count(self, program):
        made = calls_of(program, "method", "form")
        self.made += made
        self.programs += 1
        self.words += calls_of(program, "algorithm")
        self.checked[program["check"]] += made.total()
        self.axes += axes_of(program)

    def _families(self, program):
        """The communicators of each lane."""
        settings = program["check"], program["timeout"], program["sums"]
        keys = [(number, *settings) for number in range(len(program["lanes"]))]
        if program["fresh"]:
            return [Family(self.control, *settings) for _ in keys]
        for key in keys:
            if key not in self.families:
                self.families[key] = Family(self.control, *settings)
        while len(self.families) > _MOST_FAMILIES:
            oldest = next(key for key in self.families if key not in keys)
            self.families.pop(oldest).free()
        return [self.families[key] for key in keys]

    def search(self, programs, examples: int, number: int | None = None, smaller: bool = True) -> str:
        """Run so many programs; the smallest that fails, as a text for a person, or "". Collective; rank 0 draws.

        number: a seed; None: the same programs each time. smaller: whether to look for a smaller one.
        """
        if self.control.Get_rank() > 0:
            while (program := self.control.bcast(None)) is not None:
                self.run(program)
            return self.control.bcast(None)
        text = self._first = ""
        try:
            _driven(self._attempt, programs, examples, number, smaller)
        except AssertionError as error:
            text = str(error)
        except Flaky:
            text = f"{self._first}\n(not every time)"
        finally:
            self.control.bcast(None)
        return self.control.bcast(text)

    def _attempt(self, program):
        self.control.bcast(program)
        if self._running is not None:
            self._running.write_text(json.dumps(program), encoding="utf-8")
        failures = self.run(program)
        if failures:
            text = "\n".join([*failures, "the program:", json.dumps(program)])
            self._first = self._first or text
            raise AssertionError(text)

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
            time.sleep(3)  # the others print theirs, too
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
