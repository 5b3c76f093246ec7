"""A schedule bound to memory, and how it runs: it sends, receives, waits, and reduces, with nothing left to decide.

A plan knows at any moment which round it is in (`Plan.where`). Requests are not persistent: those have one tag for ever, and
each call needs its own (`channel`); it costs half a microsecond per message.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..errors import ArgumentError
from ..schedule import RECEIVES, SENDS
from ..shared_memory import Polled
from ..support.callsite import call_site
from .arithmetic import calls_as_mpi_computes
from .context import Context
from .executable import Executable
from .program import Fetch, Instruction, Places, Program, Put
from .progress import PROGRESS
from .recorder import Record
from .staging import Work
from .tasks import Task, until_done
from .withdrawal import cancelled, still_under_way

if TYPE_CHECKING:
    from typing_extensions import Self


class LowerCase:
    """mpi4py's `wait` and `test`: they also return a message's object, and a collective has none."""

    Wait: Callable[..., bool]
    Test: Callable[..., bool]

    def wait(self, status: MPI.Status | None = None) -> None:
        """`Wait`; None."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """`Test`; (done, None)."""
        return self.Test(status), None


class Plan(LowerCase):
    """A collective bound to its buffers: Start(), then Wait() or Test(), any number of times; Free() at the end.

    As with MPI's persistent collectives, ranks make the plans of a communicator in the same order, and may start them and
    wait for them in different ones. Between Start and Wait it moves by itself where MPI admits threads (`progress`), else in
    any Wait or Test.
    """

    def __init__(
        self,
        context: Context,
        name: str,
        executable: Executable,
        texts: list[str],
        work: Work,
        fingerprint: int,
        runs_ahead: bool = False,
    ) -> None:
        """texts: what each round does, for people."""
        self.context = context
        self.name = name
        self.work = work
        self.scratch = work.acquired_bytes
        self.tag = 0
        self.runs_ahead = runs_ahead
        self.step: int | None = None
        self.task: Task | None = None
        self._executable: Executable | None = executable
        #: the buffers that it works on, of a plan that is kept for later calls; and its steps there
        self.memory: Places = ()
        self.numbered = executable.numbered
        self._texts = texts
        self._started_text = f"{name}, a plan that was started"
        self._call_tag = context.call_tag(0, fingerprint)
        self._over = True
        self._started: list[Instruction] = list(executable.program.started())
        self._pending: list[Any] = [None] * executable.messages
        near = () if context.links is None else context.links.ranks
        self.hears_of_mpi = any(one.is_received and one.peer not in near for one in self._started)
        self._awaited: int | None = None
        self._compute = calls_as_mpi_computes(own_code=work.is_predefined)
        self._close = weakref.finalize(self, work.close)  # a plan may be forgotten

    # On other memory.

    @property
    def program(self) -> Program:
        """What it does."""
        return self._executable_now.program

    @property
    def _executable_now(self) -> Executable:
        if self._executable is None:
            raise RuntimeError(f"a plan that was freed: {self.name}")
        return self._executable

    @property
    def requests(self) -> int:
        """Messages that it is ready for, wherever they lie."""
        return self._executable_now.requests

    @property
    def movable(self) -> bool:
        """Whether it may work on other memory: that of the host, which nothing has to be copied from or to."""
        return self.work.device is None and not self.work.packing and not self.work.unpacking

    def lies_in(self, memory: Places) -> Self:
        """Say which buffers it was bound for; returns it."""
        self._executable_now.lies_in(memory)
        self.memory = memory
        return self

    def move(self, memory: Places) -> None:
        """Work on these buffers from now on: of the sizes of those it was bound for, the same or apart as those are."""
        executable = self._executable_now
        executable.move(memory)
        self.memory = memory
        self.numbered = executable.numbered

    # Running. `_steps` is the only loop: blocking calls wait for what it yields, tasks test it.

    def run(self) -> None:
        """Start and wait: the blocking call."""
        self.work.pack()
        self.step = 0  # from here on other ranks count on it
        try:
            tag = self.tag_of(next(self.context.calls), self.context.recorder.sequence)
            self._compute(self.context.wait_for, self._steps(tag, self.context.sent_blocking), self)
        except BaseException as error:
            if self.unfinished:
                self.context.give_up(self, error)
            raise

    def tag_of(self, number: int, sequence: int) -> int:
        """The tag of its messages where it serves the single call of this number.

        sequence: a hash of the calls up to this one. Of a persistent plan the tag is `tag`.
        """
        channel = self.context.channel
        tag = channel.numbered(self._call_tag, number, sequence)
        channel.begin(number, tag)
        return tag

    def run_as_task(self, tag: int) -> Iterator[MPI.Request]:
        """The same for a `Task`: the input is taken now; a generator of the requests for which `run` would wait."""
        self.work.pack()
        return self._until_done(self._steps(tag, self.context.sent_by_tasks))

    def _until_done(self, requests: Iterator[MPI.Request]) -> Iterator[MPI.Request]:
        try:
            yield from until_done(requests)
        except GeneratorExit:  # the process ends
            raise
        except BaseException as error:
            if self.unfinished:
                self.context.give_up(self, error)
            raise

    def _steps(self, tag: int, sent: list[int]) -> Iterator[MPI.Request]:
        pending = self._pending
        self.step = 0
        try:
            yield from self.work.arriving(self.context.channel, tag)
        except ArgumentError:  # a refusal of all ranks
            self.step = None
            raise
        for self.step, (starts, waits, actions, messages, nbytes, _) in self.numbered:
            for number, start in starts:
                pending[number] = start(tag)
            if messages:
                sent[0] += messages
                sent[1] += nbytes
            # sends too before any arithmetic: while this rank computes, MPI does not move what the peer waits for
            for self._awaited in waits:
                yield pending[self._awaited]
            self._awaited = None
            for function, arguments in actions:
                function(*arguments)
        if self.hears_of_mpi:  # a rank that gave up may have sent what was written there since
            self.context.look()
        self.step = None
        self.work.unpack()

    def withdraw(self) -> list[MPI.Request]:
        """See `Withdrawable`."""
        receives: list[MPI.Request] = []
        sends: list[MPI.Request] = []
        for one, request in zip(self._started, self._pending):
            request = request.withdraw() if isinstance(request, Polled) else request
            if isinstance(request, MPI.Request):
                (receives if one.is_received else sends).append(request)
        return cancelled(receives) + still_under_way(sends)

    @property
    def unfinished(self) -> bool:
        """Whether it is in the middle of its rounds."""
        return self.step is not None

    def _require_idle(self, action: str) -> None:
        if self.in_flight:
            raise RuntimeError(f"{action} on a plan in flight, call Wait first: {self.where()}")

    # As a persistent request.

    def Start(self) -> None:
        """Take the input and begin."""
        if self._executable is None or self.context.closed:
            raise RuntimeError(f"Start on a plan that was freed: {self.name}")
        if not self._over:  # also where it has ended: other ranks' may not have, and whether it has is chance
            raise RuntimeError(f"Start on a plan in flight, call Wait first: {self.where()}")
        record = self.context.recorder.begin(self._started_text, call_site(), ordered=False)
        record.plan = self
        if self._is_local:
            self._compute(self._run_at_once, record)
            return
        steps, track = self.run_as_task(self.tag), self.context.plan_track(self.tag)
        self.task = self.context.submit(
            steps, record, device=self.work.device, computes=self._compute, track=track, is_plan=True)
        self._over = False

    @property
    def _is_local(self) -> bool:
        """Whether it needs no other rank, no device, and no agreement, and so has nothing to wait for."""
        work = self.work
        return len(self.context.channel.ranks) == 1 and work.device is None and work.fixed is None

    def _run_at_once(self, record: Record) -> None:
        self.work.pack()
        for _ in self._steps(self.tag, self.context.sent_by_tasks):
            raise AssertionError("a plan of one rank waits for nobody")
        record.end()
        self._over = False

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Run to the end; the result is then in the caller's buffer. Without Start it returns at once, as MPI's."""
        if self.task is not None:
            PROGRESS.wait(self.task)
        self._over = True
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        done = self.task is None or PROGRESS.test(self.task)
        self._over = self._over or done
        return done

    @property
    def in_flight(self) -> bool:
        """Whether it was started and has not ended."""
        return self.task is not None and not self.task.ended

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends each time."""
        return sum(step.nbytes for _, step in self.numbered)

    def Free(self) -> None:
        """Return the scratch; a plan in flight must be waited for first."""
        if self._executable is None:
            return
        self._require_idle("Free")
        self._close()
        self._executable = None
        self.numbered = []

    def where(self) -> str:
        """Which call, algorithm, round, and message it waits for, this plan is at; "idle" between calls."""
        number, awaited, steps = self.step, self._awaited, self.numbered  # another thread may run it
        if number is None or not steps:
            return f"{self.name}: idle"
        in_round, rounds = steps[number][1].round, steps[-1][1].round + 1
        pieces = f", step {number + 1} of {len(steps)}" if rounds < len(steps) else ""
        does = self._waits_for(awaited) or self._texts[in_round]
        return f"{self.name}: round {in_round + 1} of {rounds}{pieces}, {does}"

    def peer(self) -> int | None:
        """The rank whose message it waits for, or None."""
        awaited = self._awaited
        return None if self.step is None or awaited is None else self._started[awaited].peer

    def _waits_for(self, number: int | None) -> str:
        if number is None:
            return ""
        one = self._started[number]
        peer = "" if one.peer is None else f" rank {one.peer}"
        return f"waiting {_WAITS[one.kind].format(one.nbytes)}{peer}"


#: what it waits for, by the kind of a piece
_WAITS: dict[type, str] = {
    **dict.fromkeys(SENDS, "to send {} bytes to"), **dict.fromkeys(RECEIVES, "to receive {} bytes from"),
    Fetch: "for the copy of {} bytes from the device", Put: "for the copy of {} bytes to the device",
}  # fmt: skip
