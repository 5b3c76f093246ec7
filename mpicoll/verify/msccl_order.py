"""Which steps of an MSCCL algorithm happen before which: messages, waits, deadlocks, data races.

A step on several chunks is an action for each. Threadblocks run at the same time, each its actions
in order. A connection is a first-in, first-out queue from a GPU to another on a channel. An action
that receives waits for a message, one that sends waits for room in the queue. The first action of a
step waits for the step that it depends on, as far as that tells its end (`hasdep`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ..errors import ScheduleError
from .msccl_file import BUFFERS, Chunks, MscclAlgorithm, MscclStep

#: from GPU, to GPU, channel
Edge: TypeAlias = "tuple[int, int, int]"
#: GPU, threadblock
BlockId: TypeAlias = "tuple[int, int]"
#: a chunk of memory as a place that has one name only
Place: TypeAlias = "tuple[int, str, int]"


class Action(NamedTuple):
    """A step, or its part for one chunk."""

    gpu: int
    threadblock: int
    step: MscclStep
    #: its number among the chunks of the step
    chunk: int
    #: the connections that it receives from and sends to
    inward: Edge | None
    outward: Edge | None

    @property
    def starts(self) -> bool:
        """Whether the step starts with it."""
        return self.chunk == 0

    @property
    def ends(self) -> bool:
        """Whether the step ends with it."""
        return self.chunk >= self.step.count - 1

    @property
    def source(self) -> Chunks:
        """The chunk that it reads."""
        return Chunks(self.step.source.buffer, self.step.source.first + self.chunk)

    @property
    def target(self) -> Chunks:
        """The chunk that it writes."""
        return Chunks(self.step.target.buffer, self.step.target.first + self.chunk)

    def __str__(self) -> str:
        return (
            f"GPU {self.gpu}, threadblock {self.threadblock}, step {self.step.number}"
            f" ({self.step.type})"
        )


class Order(NamedTuple):
    """One order in which actions may happen, and what each waits for in any order."""

    actions: list[Action]
    #: indices of `actions`, in the order of a run
    sequence: list[int]
    #: of each action, those it waits for: in its threadblock, the sender, the step it depends on
    before: list[list[int]]
    #: of each action that receives, the action that sends
    sender: dict[int, int]


def name_of(chunk: Chunks) -> str:
    """A chunk, as a text for messages."""
    return f"chunk {chunk.first} of the {BUFFERS[chunk.buffer]}"


def order(algorithm: MscclAlgorithm, messages: float, together: int = 1) -> Order:
    """Run all threadblocks.

    Whether it ends does not depend on the speed of threadblocks: what one waits for never goes away
    again. messages: the most that a connection holds; together: the chunks of a step that travel in
    one message.

    Raises
    ------
    ScheduleError
        Threadblocks wait for ever, messages do not match, or one is never received.
    """
    return _Run(algorithm, messages, together).play()


class _Run:
    """A run of all threadblocks."""

    def __init__(self, algorithm: MscclAlgorithm, messages: float, together: int) -> None:
        self.messages = messages
        self.together = together
        self.actions: list[Action] = []
        #: of each threadblock, its actions
        self.programs: dict[BlockId, range] = {}
        #: the threadblock at each end of a connection
        self.senders: dict[Edge, BlockId] = {}
        self.receivers: dict[Edge, BlockId] = {}
        for gpu in algorithm.gpus:
            for block in gpu.threadblocks:
                outward = (gpu.number, block.target, block.channel)
                inward = (block.source, gpu.number, block.channel)
                if block.target >= 0:
                    _connect(self.senders, outward, block.number, "send to", block.target)
                if block.source >= 0:
                    _connect(self.receivers, inward, block.number, "receive from", block.source)
                first = len(self.actions)
                for step in block.steps:
                    ends = (
                        inward if step.kind.receives else None,
                        outward if step.kind.sends else None,
                    )
                    for chunk in range(max(step.count, 1)):
                        self.actions.append(Action(gpu.number, block.number, step, chunk, *ends))
                self.programs[gpu.number, block.number] = range(first, len(self.actions))
        #: the action of each threadblock
        self.at = {block: program.start for block, program in self.programs.items()}
        #: chunks sent and not received, by the action that sent
        self.queues: defaultdict[Edge, deque[int]] = defaultdict(deque)
        #: the messages that these are
        self.held: defaultdict[Edge, int] = defaultdict(int)
        #: the last step of each threadblock whose end was told
        self.told: dict[BlockId, int] = {}
        #: threadblocks that wait for a step of a threadblock
        self.waiting: defaultdict[BlockId, set[BlockId]] = defaultdict(set)
        self.sequence: list[int] = []
        self.sender: dict[int, int] = {}
        self.ready = deque(self.programs)

    def play(self) -> Order:
        while self.ready:
            block = self.ready.popleft()
            while self.at[block] < self.programs[block].stop and not self._obstacle(block):
                self._act(block)
        stuck = [block for block, program in self.programs.items() if self.at[block] < program.stop]
        if stuck:
            reasons = [f"{self.actions[self.at[b]]} waits for {self._obstacle(b)}" for b in stuck]
            more = f"; and {len(stuck) - 6} more" if len(stuck) > 6 else ""
            raise ScheduleError(f"deadlock: {'; '.join(reasons[:6])}{more}")
        for queue in self.queues.values():
            if queue:
                raise ScheduleError(f"{self.actions[queue[0]]}: its message is never received")
        return Order(self.actions, self.sequence, self._edges(), self.sender)

    def _obstacle(self, block: BlockId) -> str:
        """What the next action of a threadblock waits for; "" for nothing."""
        action = self.actions[self.at[block]]
        if action.starts and action.step.waits_for:
            other, step = action.step.waits_for
            awaited = action.gpu, other
            if self.told.get(awaited, -1) < step:
                self.waiting[awaited].add(block)
                never = "" if self._will_tell(awaited, step) else ", which never tells it (hasdep)"
                return f"the end of step {step} of threadblock {other}{never}"
        if action.inward and not self.queues[action.inward]:
            return f"a message from GPU {action.inward[0]} on channel {action.inward[2]}"
        is_first = action.chunk % self.together == 0
        if action.outward and is_first and self.held[action.outward] >= self.messages:
            full = f"{self.held[action.outward]} messages are not received"
            return f"room to send to GPU {action.outward[1]} on channel {action.outward[2]}: {full}"
        return ""

    def _will_tell(self, block: BlockId, step: int) -> bool:
        """Whether a threadblock tells the end of a step, or of a later one."""
        program = self.programs.get(block, range(0))
        actions = (self.actions[number] for number in program)
        return any(_tells(action) and action.step.number >= step for action in actions)

    def _act(self, block: BlockId) -> None:
        number = self.at[block]
        action = self.actions[number]
        if action.inward:
            sender = self.queues[action.inward].popleft()
            self._must_match(self.actions[sender], action)
            self.sender[number] = sender
            if action.ends or (action.chunk + 1) % self.together == 0:
                self.held[action.inward] -= 1
                self.ready.append(self.senders[action.inward])
        if action.outward:
            self.queues[action.outward].append(number)
            self.held[action.outward] += action.chunk % self.together == 0
            if action.outward in self.receivers:
                self.ready.append(self.receivers[action.outward])
        if _tells(action):
            self.told[block] = action.step.number
            self.ready.extend(self.waiting.pop(block, ()))
        self.sequence.append(number)
        self.at[block] += 1

    def _must_match(self, sender: Action, receiver: Action) -> None:
        if (sender.chunk, sender.step.count) != (receiver.chunk, receiver.step.count):
            raise ScheduleError(
                f"{receiver} receives {receiver.step.count} chunks, but {sender} sends"
                f" {sender.step.count}"
            )

    def _edges(self) -> list[list[int]]:
        """Of each action, those that it waits for."""
        before: list[list[int]] = []
        tells = {
            block: [number for number in program if _tells(self.actions[number])]
            for block, program in self.programs.items()
        }
        for number, action in enumerate(self.actions):
            edges = []
            if number > self.programs[action.gpu, action.threadblock].start:
                edges.append(number - 1)
            if number in self.sender:
                edges.append(self.sender[number])
            if action.starts and action.step.waits_for:
                other, step = action.step.waits_for
                edges.append(
                    next(n for n in tells[action.gpu, other] if self.actions[n].step.number >= step)
                )
            before.append(edges)
        return before


def _connect(ends: dict[Edge, BlockId], edge: Edge, block: int, does: str, peer: int) -> None:
    """Note a threadblock at the end of a connection; ScheduleError where another one is there."""
    gpu = edge[0] if does == "send to" else edge[1]
    if edge in ends:
        raise ScheduleError(
            f"GPU {gpu}: threadblocks {ends[edge][1]} and {block} both {does} GPU {peer} on channel"
            f" {edge[2]}, whose messages come in no certain order then"
        )
    ends[edge] = gpu, block


def _tells(action: Action) -> bool:
    """Whether other threadblocks are told that the step ends here; the end of a nop is not told."""
    return action.ends and action.step.is_awaited and action.step.type != "nop"


def must_not_race(run: Order, place_of: Callable[[int, Chunks], Place]) -> None:
    """Raise ScheduleError for two uses of a chunk in no certain order, one of which writes it.

    What is received comes after what was sent, also by way of other GPUs. place_of: the place of a
    chunk of a GPU.
    """
    uses: defaultdict[Place, list[tuple[int, bool]]] = defaultdict(list)
    for number in run.sequence:
        action = run.actions[number]
        _must_not_overlap(action, place_of)
        for place, writes in _uses(action, place_of):
            uses[place].append((number, writes))
    pairs: defaultdict[int, list[tuple[int, int, Place]]] = defaultdict(list)
    for place, accesses in uses.items():
        for first, second in _conflicts(accesses):
            if run.actions[first].threadblock != run.actions[second].threadblock:
                pairs[place[0]].append((first, second, place))
    for gpu in pairs:
        _must_be_ordered(run, gpu, pairs[gpu])


def _must_not_overlap(action: Action, place_of: Callable[[int, Chunks], Place]) -> None:
    """Raise ScheduleError for a step that writes a chunk that it reads as another chunk."""
    step = action.step
    if not (action.starts and step.count > 1 and step.kind.reads and step.kind.writes):
        return
    places = [
        [
            place_of(action.gpu, Chunks(part.buffer, part.first + chunk))
            for chunk in range(step.count)
        ]
        for part in (step.source, step.target)
    ]
    if places[0] != places[1] and set(places[0]) & set(places[1]):
        raise ScheduleError(f"data race: {action} reads chunks and writes some of them elsewhere")


def _must_be_ordered(run: Order, gpu: int, pairs: Sequence[tuple[int, int, Place]]) -> None:
    """Raise ScheduleError where the first action of a pair may happen after the second."""
    own = [number for number in run.sequence if run.actions[number].gpu == gpu]
    # most are in order without the messages, which is faster to see
    for sequence in (own, run.sequence):
        earlier = _ancestors(run, gpu, sequence)
        pairs = [pair for pair in pairs if not earlier[pair[1]] >> (pair[0] - min(own)) & 1]
        if not pairs:
            return
    first, second, place = pairs[0]
    raise ScheduleError(
        f"data race: {run.actions[first]} and {run.actions[second]} both use"
        f" {name_of(Chunks(*place[1:]))}, one of them writes it, and neither waits for the other"
    )


def _ancestors(run: Order, gpu: int, sequence: Sequence[int]) -> dict[int, int]:
    """Of each action of a sequence, the actions of a GPU that happen before it, as bits."""
    first = min(number for number in sequence if run.actions[number].gpu == gpu)
    earlier: dict[int, int] = {}
    for number in sequence:
        bits = 0
        for other in run.before[number]:
            bits |= earlier.get(other, 0)
            if run.actions[other].gpu == gpu:
                bits |= 1 << (other - first)
        earlier[number] = bits
    return earlier


def _uses(action: Action, place_of: Callable[[int, Chunks], Place]) -> Iterable[tuple[Place, bool]]:
    """The places that an action uses, and whether it writes them."""
    kind = action.step.kind
    read = place_of(action.gpu, action.source) if kind.reads else None
    written = place_of(action.gpu, action.target) if kind.writes else None
    # a copy of a chunk to itself, as of the input to the output in place, changes nothing for other
    # reads, but it may undo a write that comes in between
    copies_to_itself = read == written and not kind.receives and not kind.adds
    if written and not copies_to_itself:
        yield written, True
    if read:
        yield read, False


def _conflicts(accesses: Sequence[tuple[int, bool]]) -> Iterable[tuple[int, int]]:
    """Pairs of accesses to a place which must be ordered, so that all that conflict are."""
    last_write: int | None = None
    reads: list[int] = []
    for number, writes in accesses:
        if last_write is not None:
            yield last_write, number
        if writes:
            yield from ((read, number) for read in reads)
            last_write = number
            reads = []
        else:
            reads.append(number)
