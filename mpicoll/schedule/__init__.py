"""The vocabulary of schedules: what a rank does, round by round, with blocks of a vector.

A collective algorithm is a generator ``algorithm(rank, size[, root])`` that yields *rounds*; a
round is one operation or a tuple of operations. The vector is cut into blocks; a `Part` names a
cyclic range of blocks in one place: the caller's `Input` (never written), the caller's `Output`, or
a named `Scratch` vector. A block keeps its number wherever it goes; in an alltoall, where all ranks
have other blocks, it is the number of a place: `Input(r)` is for rank r, `Output(r)` from rank r.

In a round the receives are posted first, the sends read the parts as they were before the round,
and after all messages `Reduce` and `Copy` run in the order written. Ranks and block numbers are
cyclic: ``rank + 1`` needs no modulo.

A `Write` is a send that may arrive as early as its receiver's first round, so that ranks of a node
copy it into place: nothing else uses a part before it is `Written`.

    def my_ring(rank, size):                      # reduce-scatter phase of a ring
        outgoing = Input(rank - 1)
        for t in range(size - 1):
            block = rank - t - 2
            yield (Send(rank + 1, outgoing), Recv(rank - 1, Scratch("received", block)),
                   Reduce(Scratch("received", block), Input(block), Output(block)))
            outgoing = Output(block)

Codes of blocks, which have less bytes, lie in scratch (`Coded`): a `Copy` from elements to codes
quantises them, and a `Copy` back decodes them. `compressed` makes such a schedule of another one.

At one rank every collective is a plain copy, so a generator is only asked from two ranks up.
No MPI, no NumPy.
"""

from .blocks import (
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    bounds,
    joined,
    offsets,
    pieces,
    power_of_two,
    segment_count,
)
from .combinators import folded, renamed, rounds, segmented
from .compression import SUMS, compressed, keeping_sums
from .deadlock import deadlock, unmatched
from .operations import (
    INPUT,
    MESSAGES,
    OUTPUT,
    RECEIVES,
    SENDS,
    Coded,
    Copy,
    Generator,
    Input,
    Message,
    Operation,
    Output,
    Part,
    Recv,
    Reduce,
    Round,
    Scratch,
    Send,
    Write,
    Written,
    is_coded,
    operations_of,
)

__all__ = [
    "Coded", "Copy", "Generator", "INPUT", "Input", "MAX_MESSAGE_BYTES", "MESSAGES", "Message",
    "OUTPUT", "Operation", "Output", "Part", "RECEIVES", "Recv", "Reduce", "Round",
    "SEGMENT_BYTES", "SENDS", "SUMS", "Scratch", "Send", "Write", "Written", "bounds",
    "compressed", "deadlock", "folded", "is_coded", "joined", "keeping_sums", "offsets",
    "operations_of", "pieces", "power_of_two", "renamed", "rounds", "segment_count", "segmented",
    "unmatched",
]
