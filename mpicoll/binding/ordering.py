"""The order in which a rank starts, awaits and computes: by rounds, or by pieces across rounds.

In pieces, a piece goes out as soon as it is reduced, while later pieces of its round are still on
their way. The order is fixed when a plan is bound, so that running it decides nothing:

* Every message piece has a *position*: its round, then its place among the round's pieces for that
  peer. A rank awaits a piece at its position or later and starts it at its position or earlier. The
  verifier proves that this terminates however little MPI buffers, with messages cut in two
  (`verify.flows_in_pieces`); an algorithm without that proof runs round by round.
* Starts come up to `ahead` positions early, as far as memory allows: nothing is sent before it is
  computed, nothing received where an earlier piece is still needed. Sends are awaited up to `ahead`
  positions late. So at most about 2 `ahead` requests per peer and direction are alive, whatever the
  size of the vector.
* Local work has the position at which what it needs has come, also in a round before its own: sums
  are made while later contributions are on their way. What needs nothing and is sent in codes by a
  later round (`Encode`) is coded in the turn of that message, a round earlier.
* Copies between host and device (`Fetch`, `Put`) have their turn between the positions of messages:
  a fetch before its data is sent, a put after its data has arrived. They too start early and are
  awaited late.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from .program import Encode, Instruction, Span, Step

#: how many pieces run ahead of their turn when messages are cut
AHEAD = 16


def by_rounds(rounds: Iterable[list[Instruction]]) -> Iterator[Step]:
    """One step per round, which awaits all that it starts.

    rounds: lists of messages and local work.
    """
    for number, pieces in enumerate(rounds):
        messages = [piece for piece in pieces if piece.is_message]
        awaited = sorted(messages, key=lambda piece: not piece.first)
        yield Step(number, messages, awaited, [piece for piece in pieces if not piece.is_message])


def by_pieces(
    rounds: list[list[Instruction]], ahead: int = AHEAD, together: bool = False
) -> list[Step]:
    """Steps in which pieces overtake the rounds' ends.

    rounds: lists of pieces, receives first, then sends. together: the messages of a round have one
    position; with `ahead` 0 that is the order of `by_rounds`, for pieces that are copied too.
    """
    pieces = list(chain.from_iterable(rounds))
    # copies come between the positions of messages: a put after a receive, a fetch before a send
    stride = 3 if any(piece.is_copied for piece in pieces) else 1
    follows = _dependencies(pieces)
    turns = [0] * len(pieces) if together else _turns(rounds, follows)
    steps, firsts = _empty_steps(rounds, turns, stride)
    ahead *= stride
    positions = _positions(rounds, firsts, follows, turns, stride, ahead)
    deadlines = _deadlines(pieces, follows, positions, ahead)
    #: the last start per direction and peer
    started: dict[tuple[bool, int | None], int] = defaultdict(int)
    for number, piece in enumerate(pieces):
        if not piece.is_started:
            steps[positions[number]].local.append(piece)
            continue
        earliest = positions[number] - ahead
        start = max([earliest, 0, *(deadlines[other] + 1 for other in follows[number])])
        if piece.is_message:
            channel = piece.is_sent, piece.peer
            started[channel] = start = max(start, started[channel])
        steps[start].starts.append(piece)
        steps[min(deadlines[number], len(steps) - 1)].waits.append(piece)
    for step in steps:
        for messages in (step.starts, step.waits):
            messages.sort(key=lambda piece: not piece.is_received)
    return [step for step in steps if step.starts or step.waits or step.local]


def _empty_steps(
    rounds: list[list[Instruction]], turns: list[int], stride: int
) -> tuple[list[Step], list[int]]:
    """A step for every position, and the first position of a message in each round."""
    steps: list[Step] = []
    if stride > 1:
        steps.append(Step(0, [], [], []))  # for the first fetches
    firsts = []
    number = 0
    for of_round, pieces in enumerate(rounds):
        firsts.append(len(steps))
        places = 1 + max(turns[number : number + len(pieces)], default=0)
        steps += [Step(of_round, [], [], []) for _ in range(stride * places)]
        number += len(pieces)
    return steps, firsts


def _turns(rounds: list[list[Instruction]], follows: list[set[int]]) -> list[int]:
    """The place of each piece in its round: of a message among those of its peer and direction.

    What is coded without waiting for anything has the place of the first message that sends it.
    All else has none, which is 0.
    """
    pieces = list(chain.from_iterable(rounds))
    turns = []
    coded: dict[int, int] = {}
    for of_round in rounds:
        taken: dict[tuple[bool, int | None], int] = defaultdict(int)
        for piece in of_round:
            turns.append(0)
            if not piece.is_message:
                continue
            channel = piece.is_sent, piece.peer
            turns[-1] = taken[channel]
            taken[channel] += 1
            for other in follows[len(turns) - 1]:
                if pieces[other].kind is Encode and not follows[other]:
                    coded.setdefault(other, turns[-1])
    for number, turn in coded.items():
        turns[number] = turn
    return turns


def _dependencies(pieces: list[Instruction]) -> list[set[int]]:
    """For each piece the numbers of the earlier pieces that must be done with its memory.

    Those that wrote what it reads or writes, and those that read what it writes since the last
    write.
    """
    used = stretches(pieces)
    writer: dict[int, int] = {}
    readers: dict[int, tuple[int, ...]] = {}
    follows = []
    for number, piece in enumerate(pieces):
        read = list(used(piece.reads))
        written = list(used(piece.writes))
        earlier = {writer[at] for at in chain(read, written) if at in writer}
        earlier.update(chain.from_iterable(readers.get(at, ()) for at in written))
        follows.append(earlier)
        for at in written:
            writer[at] = number
            readers[at] = ()
        for at in read:
            readers[at] = (*readers.get(at, ()), number)
    return follows


def stretches(instructions: Iterable[Instruction]) -> Callable[[Iterable[Span]], Iterator[int]]:
    """A function (spans) that yields the numbers of their stretches of memory.

    A stretch ends wherever some span of the instructions does.
    """
    edges = sorted({edge for piece in instructions for span in piece.spans for edge in span})
    index = {edge: number for number, edge in enumerate(edges)}

    def used(spans: Iterable[Span]) -> Iterator[int]:
        for start, end in spans:
            yield from range(index[start], index[end])

    return used


def _positions(
    rounds: list[list[Instruction]],
    firsts: list[int],
    follows: list[set[int]],
    turns: list[int],
    stride: int,
    ahead: int,
) -> list[int]:
    """The position of each piece.

    Of a message by its turn in its round, of local work as soon as what it follows is done, of
    a copy as late as possible where other pieces wait for it, else as early.
    """
    pieces = list(chain.from_iterable(rounds))
    first_of = chain.from_iterable([first] * len(part) for first, part in zip(firsts, rounds))
    positions: list[int] = []
    for piece, first, turn, followed in zip(pieces, first_of, turns, follows):
        earliest = first + stride * turn
        if not piece.is_message:
            if followed and not piece.is_copied:
                # earlier than its round, if no send has to end earlier for that
                sent = (positions[other] + ahead for other in followed if pieces[other].is_sent)
                earliest = min(first, max(sent, default=0))
            earliest = max([earliest, *(positions[other] for other in followed)])
            earliest += piece.is_copied
        positions.append(earliest)
    _postpone_copies(pieces, follows, positions)
    return positions


def _postpone_copies(
    pieces: list[Instruction], follows: list[set[int]], positions: list[int]
) -> None:
    """Move each copy to just before the first piece that waits for it."""
    needed: dict[int, int] = {}
    for number in reversed(range(len(pieces))):
        if pieces[number].is_copied:
            positions[number] = needed.get(number, positions[number])
        for other in follows[number]:
            latest = positions[number] - pieces[number].is_started
            needed[other] = min(latest, needed.get(other, latest))


def _deadlines(
    pieces: list[Instruction], follows: list[set[int]], positions: list[int], ahead: int
) -> list[int]:
    """The position after which each piece is done: sends are late, if their memory allows."""
    late = [piece.is_sent or piece.is_copied for piece in pieces]
    deadlines = [at + ahead * lasts for at, lasts in zip(positions, late)]
    for number, piece in enumerate(pieces):
        # local work runs at the end of its step, a message starts at the beginning of one
        needed = positions[number] - piece.is_started
        for other in follows[number]:
            if late[other]:
                deadlines[other] = min(deadlines[other], needed)
    return deadlines
