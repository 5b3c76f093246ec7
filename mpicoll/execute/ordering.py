"""The order in which a rank starts, awaits and computes: round by round, or piece by piece across rounds.

In pieces, a piece goes out as soon as it is reduced, while later pieces of its round are still on their way. The order
is fixed when a plan is bound, so that running it decides nothing:

* Every message piece has a *position*: its round, then its place among the round's pieces for that peer. A rank awaits a
  piece at its position or later and starts it at its position or earlier. That this comes to an end however little MPI
  buffers is proved by the verifier with messages cut in two (`verify.flows_in_pieces`); an algorithm of which it cannot
  be proved runs round by round.
* Starts come up to `ahead` positions early, as far as memory allows: nothing is sent before it is computed, nothing
  received where an earlier piece is still needed. Sends are awaited up to `ahead` positions late. So at most about
  2 `ahead` requests per peer and direction are alive, whatever the size of the vector.

This module knows neither MPI nor NumPy.
"""

from collections import defaultdict
from typing import NamedTuple

from ..schedule import Recv, Send


class Task(NamedTuple):
    """A piece of an operation. reads, writes: spans (start, end) of one address space; work: what the caller attaches."""

    kind: type
    peer: int | None
    reads: tuple
    writes: tuple
    work: object


class Step(NamedTuple):
    """What a rank does next: start these messages, wait for those, then compute. round: which round's turn it is."""

    round: int
    starts: list
    waits: list
    local: list


def by_rounds(rounds):
    """One step per round, everything that it starts awaited in it. rounds: lists of tasks, receives first."""
    for number, tasks in enumerate(rounds):
        messages = [task for task in tasks if task.kind in (Recv, Send)]
        yield Step(number, messages, messages, [task for task in tasks if task.kind not in (Recv, Send)])


def by_pieces(rounds, ahead):
    """Steps in which pieces overtake the rounds' ends. rounds: lists of tasks, receives first, then sends."""
    rounds = list(rounds)
    memory = _Memory(task for tasks in rounds for task in tasks)
    lanes = defaultdict(int)  # (kind, peer): the last start, which the next must not come before
    steps, awaited = [], {}  # awaited: send -> the step that waits for it; whoever needs its memory earlier lowers it
    sends = []
    for number, tasks in enumerate(rounds):
        base, taken = len(steps), defaultdict(int)
        steps += [Step(number, [], [], []) for _ in range(_pieces(tasks))]
        for task in tasks:
            if task.kind not in (Recv, Send):
                position = max(base, memory.settled(task, awaited, within=True))
                steps[position].local.append(task)
                memory.touch(task, position)
                continue
            lane = task.kind, task.peer
            position = base + taken[lane]
            taken[lane] += 1
            ready = memory.settled(task, awaited, within=False, position=position)
            lanes[lane] = start = max(ready + 1, position - ahead, lanes[lane])
            steps[start].starts.append(task)
            if task.kind is Recv:
                steps[position].waits.append(task)
            else:
                awaited[id(task)] = position + ahead
                sends.append(task)
            memory.touch(task, position)
    for task in sends:
        steps[min(awaited[id(task)], len(steps) - 1)].waits.append(task)
    for step in steps:
        step.starts.sort(key=lambda task: task.kind is not Recv)
    return steps


def _pieces(tasks):
    """How many positions a round takes: its longest lane, or one for local work alone."""
    lanes = defaultdict(int)
    for task in tasks:
        if task.kind in (Recv, Send):
            lanes[task.kind, task.peer] += 1
    return max(lanes.values(), default=1)


class _Memory:
    """Who wrote and who still reads each stretch of memory; stretches end wherever some task's span does."""

    def __init__(self, tasks):
        edges = {edge for task in tasks for span in task.reads + task.writes for edge in span}
        self.index = {edge: number for number, edge in enumerate(sorted(edges))}
        self.written = [-1] * len(edges)  # the step after which the last write is there
        self.readers = [()] * len(edges)  # (step, task) since that write

    def _stretches(self, spans):
        for start, end in spans:
            yield from range(self.index[start], self.index[end])

    def settled(self, task, awaited, within, position=None):
        """The step after which `task` may use its memory.

        within: it runs at the end of a step, so that a send awaited in that very step is out of its way; a message
        starts at the beginning of one. The sends it must wait for are awaited no later than that.
        """
        settled = max([self.written[at] for at in self._stretches(task.reads + task.writes)], default=-1)
        for at in self._stretches(task.writes):
            for step, reader in self.readers[at]:
                if reader.kind is not Send:
                    settled = max(settled, step)
                elif within:
                    settled = max(settled, step)
                    awaited[id(reader)] = min(awaited[id(reader)], max(settled, step))
                else:
                    awaited[id(reader)] = min(awaited[id(reader)], position - 1)
                    settled = max(settled, awaited[id(reader)])
        return settled

    def touch(self, task, step):
        """Note that `task` uses its memory until `step`."""
        for at in self._stretches(task.writes):
            self.written[at], self.readers[at] = step, ()
        for at in self._stretches(task.reads):
            self.readers[at] += ((step, task),)
