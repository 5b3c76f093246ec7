"""Prove algorithms of MSCCL, or say which GPU, threadblock, step and chunk is wrong.

It proves, for each call that the file is for (in place, out of place):

- No threadblock waits for ever, with as many messages on the way as NCCL's connections hold.
- Every message is received, by a step on as many chunks.
- No two threadblocks use a chunk in no certain order where one of them writes it.
- Only what holds data is used, and out of place the input is not written.
- Every GPU ends with the result of the collective, with every contribution exactly once.

One pass over the steps is proved. MSCCL repeats it for each piece of long vectors; then
threadblocks may be ahead of others, on memory of its own for each piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from .. import collectives
from ..errors import ScheduleError
from .msccl_file import CONNECTIONS, Chunks, MscclAlgorithm, read
from .msccl_order import Action, Order, Place, must_not_race, name_of, order
from .symbolic import Expressions

#: the collectives by MSCCL's names; its compiler and its interpreter differ in some
_COLLECTIVES = {
    "allreduce": collectives.ALLREDUCE,
    "reduce_scatter": collectives.REDUCE_SCATTER,
    "reducescatter": collectives.REDUCE_SCATTER,
    "allgather": collectives.ALLGATHER,
    "alltoall": collectives.ALLTOALL,
    "broadcast": collectives.BCAST,
    "reduce": collectives.REDUCE,
}


class MscclProof(NamedTuple):
    """What is proved of an algorithm of MSCCL.

    Attributes
    ----------
    algorithm : MscclAlgorithm
        The content of the file.
    calls : tuple of str
        "in place", "out of place", or both.
    messages : int
        Messages that a connection must hold, so that no threadblock waits for ever.
    limit : int or None
        The bytes of the longest vector for which that is so; None: any that the file is for. A step
        on several chunks sends them in one message as far as they fit.
    result : bool
        Whether the result is proved. It is not where the collective is not known.
    root : int or None
        The GPU that is the root; None where the collective has none.
    same_bits : bool
        Whether all GPUs add the contributions to a chunk in the same order.
    """

    algorithm: MscclAlgorithm
    calls: tuple[str, ...]
    messages: int
    limit: int | None
    result: bool
    root: int | None
    same_bits: bool


def check_msccl(text: str | bytes) -> MscclProof:
    """Prove an algorithm of MSCCL.

    Parameters
    ----------
    text : str or bytes
        The content of the XML file.

    Returns
    -------
    MscclProof
        What is proved. For a collective that is not known these are the order and the messages
        alone.

    Raises
    ------
    ScheduleError
        It is wrong; the message names the GPU, the threadblock, the step and the chunk.
    ArgumentError
        The text is not MSCCL's format.

    Cost
    ----
    About 10 us per step and chunk.
    """
    algorithm = read(text)
    run = order(algorithm, math.inf)
    messages, limit = _messages_needed(algorithm)
    calls = [
        in_place
        for in_place, is_for in ((True, algorithm.in_place), (False, algorithm.out_of_place))
        if is_for
    ]
    proof = MscclProof(
        algorithm,
        tuple("in place" if in_place else "out of place" for in_place in calls),
        messages,
        limit,
        result=algorithm.collective in _COLLECTIVES,
        root=None,
        same_bits=True,
    )
    if not proof.result:
        must_not_race(run, lambda gpu, chunk: (gpu, chunk.buffer, chunk.first))
        return proof
    for in_place in calls:
        call = _Call(algorithm, in_place)
        must_not_race(run, call.place_of)
        root, same_bits = _prove_with_some_root(call, run)
        proof = proof._replace(root=root, same_bits=proof.same_bits and same_bits)
    return proof


def _messages_needed(algorithm: MscclAlgorithm) -> tuple[int, int | None]:
    """The least number of messages that connections must hold, and the limit of the vector."""
    most, message_bytes = CONNECTIONS[algorithm.protocol]
    counts = [step.count for gpu in algorithm.gpus for tb in gpu.threadblocks for step in tb.steps]
    longest = max(counts, default=1)
    together = 1
    problem = None
    while error := _deadlock(algorithm, most, together):
        problem = problem or error
        if together >= longest:
            held = f"where a connection holds {most} messages, as with {algorithm.protocol}"
            raise ScheduleError(f"{held}, {error}")
        together += 1
    limit = message_bytes // together * algorithm.chunks if together > 1 else None
    if limit and algorithm.max_bytes and algorithm.max_bytes > limit:
        raise ScheduleError(
            f"with vectors of more than {limit} bytes (the file allows {algorithm.max_bytes}),"
            f" {problem}"
        )
    needed = next(n for n in range(1, most + 1) if not _deadlock(algorithm, n, together))
    return needed, None if algorithm.max_bytes else limit


def _deadlock(algorithm: MscclAlgorithm, messages: int, together: int) -> str:
    """The message about a deadlock, or ""."""
    try:
        order(algorithm, messages, together)
    except ScheduleError as error:
        return str(error)
    return ""


class _Call:
    """A call of a collective: which chunks of its buffers there are, and where they lie."""

    def __init__(self, algorithm: MscclAlgorithm, in_place: bool) -> None:
        self.collective = _COLLECTIVES[algorithm.collective]
        self.size = len(algorithm.gpus)
        self.blocks = algorithm.chunks
        self.in_place = in_place
        if self.collective.blocks_of_ranks and self.blocks % self.size:
            raise ScheduleError(
                f"{algorithm.collective} needs chunks for each GPU alike, but its"
                f" {self.blocks} chunks (nchunksperloop) are no multiple of {self.size}"
            )
        share = self.blocks // self.size
        own = collectives.OWN
        self.chunks = {
            "i": share if self.collective.initial == own else self.blocks,
            "o": share if self.collective.final == own else self.blocks,
        }

    def place_of(self, gpu: int, chunk: Chunks) -> Place:
        """Where a chunk lies: in place, those of input and output are partly the same."""
        buffer, number = chunk
        if self.in_place and buffer != "s":
            own = number + gpu * min(self.chunks.values())
            if self.chunks["i"] < self.chunks["o"]:
                return (gpu, "o", own) if buffer == "i" else (gpu, "o", number)
            if self.chunks["i"] > self.chunks["o"]:
                return (gpu, "i", own) if buffer == "o" else (gpu, "i", number)
            return gpu, "o", number
        return gpu, buffer, number

    def contributions(self, gpu: int, root: int) -> Iterator[tuple[Chunks, int]]:
        """What a GPU has at the start, and the contributions by number: GPU * blocks + block."""
        before = self.collective.precondition(gpu, self.size, self.blocks, root)
        if before:
            for chunk in range(before.count):
                yield Chunks("i", chunk), gpu * self.blocks + before.first + chunk

    def results(self, gpu: int, root: int) -> Iterator[tuple[Chunks, list[int]]]:
        """What a GPU must have at the end: the contributions to each chunk."""
        after = self.collective.postcondition(gpu, self.size, self.blocks, root)
        if not after:
            return
        for chunk in range(after.count):
            block = after.first + chunk
            ranks = self.collective.contributors(gpu, block, self.size, self.blocks, root)
            personal = self.collective.personal
            yield (
                Chunks("o", chunk),
                [rank if personal else rank * self.blocks + block for rank in ranks],
            )


def _prove_with_some_root(call: _Call, run: Order) -> tuple[int | None, bool]:
    """Prove the result, and return the root and whether bits are the same; files name no root."""
    if not call.collective.rooted:
        return None, _Values(call, run, 0).prove()
    errors = []
    for root in range(call.size):
        try:
            return root, _Values(call, run, root).prove()
        except ScheduleError as error:
            errors.append(f"with root {root}: {error}")
    raise ScheduleError(f"it is right for no root; {errors[0]}")


class _Values:
    """What chunks hold, as expressions."""

    def __init__(self, call: _Call, run: Order, root: int) -> None:
        self.call = call
        self.run = run
        self.root = root
        self.expressions = Expressions(call.size * call.blocks)
        self.memory: dict[Place, int] = {}
        #: the last action that wrote a place
        self.writer: dict[Place, Action] = {}
        for gpu in range(call.size):
            for chunk, contribution in call.contributions(gpu, root):
                self.memory[call.place_of(gpu, chunk)] = contribution

    def prove(self) -> bool:
        """Compute all chunks and compare the results; return whether all have the same bits."""
        messages: dict[int, int] = {}
        for number in self.run.sequence:
            action = self.run.actions[number]
            kind = action.step.kind
            value = messages.pop(self.run.sender[number]) if kind.receives else None
            if kind.reads:
                value = self._sum(action, value, self._read(action, action.source))
            if kind.adds:
                value = self._sum(action, value, self._read(action, action.target))
            if value is None:  # a nop
                continue
            if kind.writes:
                self._write(action, value)
            if kind.sends:
                messages[number] = value
        return self._compare()

    def _read(self, action: Action, chunk: Chunks) -> int:
        self._must_exist(action, chunk)
        place = self.call.place_of(action.gpu, chunk)
        if place not in self.memory:
            raise ScheduleError(f"{action}: it reads {name_of(chunk)}, where nothing was put")
        return self.memory[place]

    def _write(self, action: Action, value: int) -> None:
        chunk = action.target
        self._must_exist(action, chunk)
        if chunk.buffer == "i" and not self.call.in_place:
            raise ScheduleError(
                f"{action}: it writes {name_of(chunk)}, which a call out of place leaves as it is"
            )
        place = self.call.place_of(action.gpu, chunk)
        self.memory[place] = value
        self.writer[place] = action

    def _must_exist(self, action: Action, chunk: Chunks) -> None:
        there = self.call.chunks.get(chunk.buffer)
        if there is not None and chunk.first >= there:
            raise ScheduleError(f"{action}: there is no {name_of(chunk)}, which has {there} chunks")

    def _sum(self, action: Action, value: int | None, other: int) -> int:
        if value is None:
            return other
        # sums do not depend on the order of two operands
        total = self.expressions.add(*sorted((value, other)))
        if total is None:
            ranks = self.expressions.ranks
            twice = (ranks[value] & ranks[other]).bit_length() - 1
            raise ScheduleError(f"{action}: {self._sources([twice])} is added twice")
        return total

    def _compare(self) -> bool:
        """Compare what is there with the results; return whether all GPUs have the same bits."""
        first: dict[int, int] = {}
        same = True
        for gpu in range(self.call.size):
            for chunk, expected in self.call.results(gpu, self.root):
                place = self.call.place_of(gpu, chunk)
                value = self.memory.get(place)
                if value is None:
                    raise ScheduleError(f"GPU {gpu}: nothing was put into {name_of(chunk)}")
                mask = self.expressions.ranks[value]
                if mask != sum(1 << contribution for contribution in expected):
                    self._fail(gpu, chunk, mask, expected)
                same = same and first.setdefault(expected[0], value) == value
        return same

    def _fail(self, gpu: int, chunk: Chunks, mask: int, expected: list[int]) -> None:
        there = [number for number in range(mask.bit_length()) if mask >> number & 1]
        writer = self.writer.get(self.call.place_of(gpu, chunk))
        who = f", which {writer} wrote last," if writer else ""
        raise ScheduleError(
            f"GPU {gpu}: {name_of(chunk)}{who} is made of {self._sources(there)}; expected"
            f" {self._sources(expected)}"
        )

    def _sources(self, contributions: list[int]) -> str:
        """Contributions, as a text for messages."""
        gpus: dict[int, list[int]] = {}
        for number in contributions:
            gpus.setdefault(number % self.call.blocks, []).append(number // self.call.blocks)
        words = [
            f"chunk {block} of GPU{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}"
            for block, there in gpus.items()
        ]
        return " and ".join(words[:4]) + (" and more" if len(words) > 4 else "")
