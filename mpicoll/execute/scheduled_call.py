"""A schedule bound to memory, and how it runs: it sends, receives, waits, and reduces.

Nothing is left to decide while it runs, and it knows at any moment which round it is in
(`where`). Requests are not persistent: those keep one tag, and each call needs its own
(`transport.channel`); that costs half a microsecond per message.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from ..binding import Fetch, Instruction, Places, Program, Put
from ..engine import Compiled
from ..errors import ArgumentError
from ..failure import Record, cancelled, still_under_way
from ..progress import (
    DELAY,
    LARGE_DELAY,
    PROGRESS,
    Task,
    calls_as_mpi_computes,
    until_done,
)
from ..schedule import RECEIVES, SENDS
from ..shared_memory import Polled
from ..support.callsite import Site, call_site, quick_site
from .executable import Executable
from .operation import Operation, array_of, clear_status
from .staging import Work

if TYPE_CHECKING:
    from typing_extensions import Self

    from .context import Context


#: bytes that a rank sends in a plan which others will hardly compute beside
_SMALL = 64 << 10


class ScheduledCall(Operation):
    """A schedule bound to its buffers.

    Between Start and Wait it progresses in any Wait or Test, and in the background, soon after its
    Start or at once (`progress`).
    """

    is_kept = True

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
        """texts: descriptions of the rounds."""
        self.context = context
        self.name = self.text = name
        self.work = work
        self.scratch = work.acquired_bytes
        #: of a persistent plan
        self.tag = 0
        self.runs_ahead = runs_ahead
        self.task: Task | None = None
        #: see `progress.Unattended`
        self.place = context.queue, 0
        self.begun = 0.0
        self.delay = 0.0
        self._site: Site = ""
        #: for the starts of a plan, if Python has nothing to do before or after the program
        self._door: Any = None
        #: None after `Free`
        self._executable: Executable | None = executable
        #: the steps on this memory, with their numbers
        self.numbered = executable.numbered
        self._texts = texts
        self._call_tag = context.call_tag(0, fingerprint)
        #: the program for the compiled interpreter, where that executes it
        self.compiled: Compiled | None = None
        #: whether the call under way is in the compiled interpreter, and all else was done
        self._is_in_c = False
        #: whether the caller has waited for the last Start
        self._over = True
        #: the instructions that start a request, and these requests
        self._starting: list[Instruction] = list(executable.program.started())
        self._pending: list[Any] = [None] * executable.messages
        near = () if context.links is None else context.links.ranks
        #: whether it receives messages through MPI
        self.hears_of_mpi = any(
            piece.is_received and piece.peer not in near for piece in self._starting)
        #: the number of the request that it waits for
        self._awaited: int | None = None
        self._compute = calls_as_mpi_computes(own_code=work.is_predefined)
        #: called at the latest when the plan is collected: a user may forget it
        self._close = weakref.finalize(self, work.close)

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
    def requests(self) -> int:  # noqa: D102
        return self._executable_now.messages

    @property
    def movable(self) -> bool:
        """Whether it may work on other memory: on the host, without copies before or after."""
        work = self.work
        return work.device is None and not (work.packing or work.unpacking or work.leaves_blocks)

    def lies_in(self, memory: Places) -> None:  # noqa: D102
        self._executable_now.lies_in(memory)
        if self.compiled is not None:
            self.compiled.lies_in(memory)
        self.memory = memory

    def move(self, memory: Places) -> None:  # noqa: D102
        self.memory = memory
        if self.compiled is None:
            executable = self._executable_now
            executable.move(memory)
            self.numbered = executable.numbered

    # Running. Blocking calls wait for what `_steps` yields, tasks test it.

    def run(self, record: Record | None = None) -> None:  # noqa: D102
        if record is not None:
            record.plan = self
        self.work.pack()
        self.step = 0  # from here on other ranks rely on it
        try:
            tag = self.tag_of(next(self.context.calls), self.context.recorder.sequence)
            steps = self._steps(tag, self.context.sent_blocking, self.context.patience)
            self._compute(self.context.wait_for, steps, self)
        except BaseException as error:
            if self.unfinished:
                self.context.give_up(self, error)
            raise

    def tag_of(self, number: int, sequence: int) -> int:
        """The tag of its messages where it serves the single call of this number.

        sequence: a hash of the calls up to this one. A persistent plan has the tag `tag`.
        """
        channel = self.context.channel
        tag = channel.numbered(self._call_tag, number, sequence)
        channel.begin(number, tag)
        return tag

    def run_as_task(self, tag: int) -> Iterator[MPI.Request]:
        """The same for a `Task`: takes the input now, and returns a generator of its requests."""
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

    def _steps(self, tag: int, sent: list[int], patience: float = 0.0) -> Iterator[Any]:
        """Its requests, when they are awaited. patience: see `Compiled.start`."""
        self.step = 0
        self._is_in_c = False
        try:
            yield from self.work.arriving(self.context.channel, tag)
        except ArgumentError:  # a refusal of all ranks
            self.step = None
            raise
        if self.compiled is None:
            yield from self._interpreted(tag, sent)
        else:
            self.compiled.start(tag, self.memory, patience)
            self._is_in_c = True
            self._count(self.compiled, sent)
            yield from self._executed(self.compiled)
        self._end()

    def _interpreted(self, tag: int, sent: list[int]) -> Iterator[Any]:
        """By Python: the reference."""
        pending = self._pending
        for self.step, (starts, waits, actions, messages, nbytes, _) in self.numbered:
            for number, start in starts:
                pending[number] = start(tag)
            if messages:
                sent[0] += messages
                sent[1] += nbytes
            # sends too before any arithmetic: MPI moves nothing while this rank computes
            for self._awaited in waits:
                yield pending[self._awaited]
            self._awaited = None
            for function, arguments in actions:
                function(*arguments)

    @staticmethod
    def _count(compiled: Compiled, sent: list[int]) -> None:
        messages, nbytes = compiled.sent
        sent[0] += messages
        sent[1] += nbytes

    def _executed(self, compiled: Compiled) -> Iterator[Any]:
        """By the compiled interpreter, which has begun."""
        while not compiled.advance():
            self.step, self._awaited = compiled.position
            yield compiled
        self._awaited = None

    # Through a door, see `doors`.

    def open_door(  # noqa: D102
        self, door: Any, arguments: tuple[object, ...], mark: bytes, patience: float | None
    ) -> None:
        if self.compiled is not None and self._is_all_in_c:
            memory = _memory_of(arguments)
            call = (arguments, self, mark)
            self.compiled.open_door(door, call, self._call_tag, memory, patience)

    @property
    def _is_all_in_c(self) -> bool:
        """Whether Python has nothing to do before or after the program."""
        return self.compiled is not None and self._executable is not None and self.movable

    def finish(self, record: Record, tag: int, arguments: Sequence[object]) -> None:
        """Wait for a call that a door has begun."""
        self._take_over(record, tag, arguments, self.context.patience)
        self._compute(self.context.wait_for, self._rest(), self)

    def finish_as_task(
        self, record: Record, tag: int, arguments: Sequence[object]
    ) -> Iterator[MPI.Request]:
        """The same for a `Task`."""
        self._take_over(record, tag, arguments, 0.0)
        return self._until_done(self._rest())

    def _take_over(
        self, record: Record, tag: int, arguments: Sequence[object], patience: float
    ) -> None:
        assert self.compiled is not None
        self.step = 0
        self._is_in_c = True
        record.plan = self
        self.compiled.resume(tag, _memory_of(arguments), patience)

    def _rest(self) -> Iterator[Any]:
        """The steps of a call that has begun in the extension."""
        assert self.compiled is not None
        yield from self._executed(self.compiled)
        self._end()

    def rest(self) -> Iterator[Any] | None:
        """See `Resumable`."""
        if self.step is None or not self._is_in_c:
            return None
        assert self.compiled is not None
        if self.compiled.is_stuck:
            return None
        self.compiled.catch_up()
        return self._rest()

    def _end(self) -> None:
        # a rank that gave up may have sent what was written there since; the extension looks itself
        if self.hears_of_mpi and self.compiled is None:
            self.context.look()
        self.step = None
        self.work.unpack()

    def withdraw(self) -> list[MPI.Request]:
        """See `Withdrawable`."""
        pending = self._pending if self.compiled is None else self.compiled.pending()
        receives: list[MPI.Request] = []
        sends: list[MPI.Request] = []
        for piece, request in zip(self._starting, pending):
            request = request.withdraw() if isinstance(request, Polled) else request
            if isinstance(request, MPI.Request):
                (receives if piece.is_received else sends).append(request)
        if self.compiled is not None:
            self.compiled.detach()
        return cancelled(receives) + still_under_way(sends)

    @property
    def unfinished(self) -> bool:
        """Whether it is in the middle of its rounds."""
        return self.step is not None or self.is_busy

    @property
    def is_busy(self) -> bool:  # noqa: D102
        return self.compiled is not None and self.compiled.is_under_way

    # As a persistent request.

    def persistent(self, info: MPI.Info) -> Self:
        """Itself, with a tag that no single call has."""
        self.tag = self.context.next_plan_tag()
        self.place = self.context.queue, self.context.plan_track(self.tag)
        self.delay = LARGE_DELAY if self.nbytes > _SMALL else DELAY
        if self._is_all_in_c:
            self._door = self.context.doors.of_plan()
        return self

    def Start(self) -> None:
        """Take the input and begin. What a signal handler raises ends no plan that has begun."""
        if not self.in_flight and self._is_left_unattended():
            return
        # not even if it has ended: it may not have ended on other ranks, so that is chance
        self._require_startable()
        self.task = None
        self._over = False
        record = self._new_record()
        self.task = self._new_task(self.run_as_task(self.tag), record)
        self._recorded(record, call_site())
        PROGRESS.submit(self.task)

    def _new_record(self) -> Record:
        record = Record(self.context.recorder)
        record.plan = self
        return record

    def _new_task(self, steps: Iterator[object], record: Record) -> Task:
        queue, track = self.place
        return Task(
            steps, queue, record, device=self.work.device, computes=self._compute,
            track=track, is_plan=True,
        )  # fmt: skip

    def _is_left_unattended(self) -> bool:
        """Begin in the extension, without a task; whether it can."""
        door = self._door
        if door is None:
            return False
        assert self.compiled is not None
        if not door.knows:
            self.compiled.open_door_of_plan(door, self.tag, self.memory)
        door.has_begun = False
        self.task = None
        self._over = False
        self.begun = perf_counter()
        ended: bool | None = door.start(self)
        if ended is None or ended is False and PROGRESS.defer(self):
            self._site = quick_site()
            PROGRESS.leave(self)
        elif not ended:
            self._over = True
        return not self._over

    # See `progress.Unattended`.

    def go_on(self) -> bool | None:  # noqa: D102
        if self._door.has_begun:
            return cast("bool | None", self._door.go_on(self))
        return None if self._door.start(self) is False else True

    def finish_alone(self, patience: float) -> bool:  # noqa: D102
        if self._door is not None and self._door.has_begun:
            self._door.finish(self, patience)
        return self._has_ended

    def as_task(self) -> Task:  # noqa: D102
        if self.task is None:
            record = self._new_record()
            self.task = self._new_task(self._unattended_steps(), record)
            self._recorded(record, self._site)
        return self.task

    def _unattended_steps(self) -> Iterator[MPI.Request]:
        if not self._door.has_begun:
            return self.run_as_task(self.tag)
        assert self.compiled is not None
        self.step = 0
        self._is_in_c = True
        self.compiled.resume(self.tag, self.memory, 0.0)
        return self._until_done(self._rest())

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Run to the end; the result is then in the caller's buffer.

        Returns at once without a Start, as MPI's Wait does.
        """
        if not self._has_ended:
            PROGRESS.finish(self)
            if self.task is not None:
                PROGRESS.wait(self.task)
        self._over = True
        clear_status(status)
        return True

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Make progress without blocking; True when done."""
        done = self._has_ended or PROGRESS.has_finished(self)
        if self.task is not None:
            done = PROGRESS.test(self.task) and done
        self._over = self._over or done
        if done:
            clear_status(status)
        return done

    @property
    def is_freed(self) -> bool:  # noqa: D102
        return self._executable is None or self.context.closed

    @property
    def in_flight(self) -> bool:
        """Whether it was started and not waited for since.

        Where a signal handler raised in Start before anything had begun, it is not.
        """
        has_begun = self._door is not None and self._door.has_begun
        is_anywhere = has_begun or self.task is not None or PROGRESS.is_unattended(self)
        return is_anywhere and not self._over

    @property
    def _has_ended(self) -> bool:
        """Whether its last start has begun and ended in the extension."""
        return self._door is not None and self._door.has_begun and self._door.has_ended

    @property
    def nbytes(self) -> int:
        """Bytes that this rank sends each time."""
        return sum(step.nbytes for _, step in self.numbered)

    def Free(self) -> None:
        """Return the scratch; a plan in flight must be waited for first."""
        if self._executable is None:
            return
        self._require_idle("Free")
        if self.compiled is not None:
            self.compiled.free()
        self._close()
        self._executable = None
        self._door = None
        self.numbered = []

    def where(self) -> str:
        """The call, algorithm, round, and awaited message of this plan; "idle" between calls."""
        # read once: another thread may run the plan
        number = self.step
        awaited = self._awaited
        steps = self.numbered
        if number is None or not steps:
            return f"{self.name}: idle"
        in_round = steps[number][1].round
        rounds = steps[-1][1].round + 1
        pieces = f", step {number + 1} of {len(steps)}" if rounds < len(steps) else ""
        does = self._waits_for(awaited) or self._texts[in_round]
        return f"{self.name}: round {in_round + 1} of {rounds}{pieces}, {does}"

    def peer(self) -> int | None:
        """The rank at the other end of the awaited message, or None."""
        awaited = self._awaited
        return None if self.step is None or awaited is None else self._starting[awaited].peer

    def _waits_for(self, number: int | None) -> str:
        if number is None:
            return ""
        piece = self._starting[number]
        peer = "" if piece.peer is None else f" rank {piece.peer}"
        return f"waiting {_WAITS[piece.kind].format(piece.nbytes)}{peer}"


def _memory_of(arguments: Sequence[object]) -> Places:
    """Where the arrays among a call's arguments lie."""
    arrays = map(array_of, arguments)
    return tuple((MPI.Get_address(array), array.nbytes) for array in arrays if array is not None)


#: the awaited event, by the kind of a piece
_WAITS: dict[type, str] = {
    **dict.fromkeys(SENDS, "to send {} bytes to"),
    **dict.fromkeys(RECEIVES, "to receive {} bytes from"),
    Fetch: "for the copy of {} bytes from the device",
    Put: "for the copy of {} bytes to the device",
}
