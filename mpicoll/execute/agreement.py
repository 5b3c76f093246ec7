"""Agreement of all ranks on a call before its data moves: ceil(log2 p) rounds of small messages."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from mpi4py import MPI

from ..errors import CollectiveMismatch
from ..failure import remembered
from ..support.checks import groups, ranks_text
from ..transport import COMPARE, Channel
from .accounts import calls_so_far
from .context import Context

#: the word of a rank that says nothing: any other word is larger
SILENT = np.iinfo(np.int64).min
#: bytes of one rank's text where ranks differ
_TEXT = 1000
#: how many different texts are passed on
_MOST_TEXTS = 64
#: in place of a text that was not passed on
UNTOLD = "something else again"


class Statement(NamedTuple):
    """What a rank says of its call.

    what: equal on all ranks in all programs that MPI allows. kind: of the elements, "" where it may
    be any. site: where the call is made, "file:line". sequence: a hash of all calls so far.
    runs_in_c: whether the extension would execute a schedule of the call on this rank.
    """

    what: str
    kind: str
    site: str
    sequence: int = 0
    runs_in_c: bool = False

    def __str__(self) -> str:
        return f"{self.what}, {self.kind}" if self.kind else self.what


def largest_of_all(
    context: Context, words: np.ndarray[Any, Any], number: int
) -> Iterator[MPI.Request]:
    """`largest` in a call of this number."""
    return largest(context.channel, words, comparing_tag(context.channel, number))


def comparing_tag(channel: Channel, number: int) -> int:
    """The tag of messages by which ranks agree in the call of this number, which begins."""
    tag = channel.tag(COMPARE, number)
    channel.begin(number, tag)
    return tag


def largest(channel: Channel, words: np.ndarray[Any, Any], tag: int) -> Iterator[MPI.Request]:
    """Each word becomes its maximum over all ranks: a generator of requests to be awaited.

    By dissemination: it may count a rank twice, which does not change a maximum. tag: of its
    messages.
    """
    rank, size = channel.rank, len(channel.ranks)
    received = np.empty_like(words)
    distance = 1
    while distance < size:
        source = (rank - distance) % size
        target = (rank + distance) % size
        yield from channel.exchange(received, source, words, target, tag)
        np.maximum(words, received, out=words)
        distance *= 2


def compare(context: Context, statement: Statement, number: int) -> Iterator[MPI.Request]:
    """Raise the same CollectiveMismatch on all ranks unless their statements agree.

    They learn whether the extension would execute the call on each of them. A generator of requests
    to be awaited.
    """
    what = crc32(statement.what.encode())
    kind = crc32(statement.kind.encode()) if statement.kind else None
    kinds = (SILENT, SILENT) if kind is None else (kind, ~kind)
    sequence = statement.sequence
    words = np.array(
        [what, ~what, *kinds, sequence, ~sequence, not statement.runs_in_c], np.int64)
    yield from largest_of_all(context, words, number)
    same_what, same_kind, same_sequence = (words[at] == ~words[at + 1] for at in (0, 2, 4))
    is_same = same_what and (same_kind or words[2] == SILENT)
    if not (is_same and same_sequence):
        said = yield from everyone_says(context, f"{statement} at {statement.site}", number)
        calls = calls_so_far(context.recorder) if is_same else remembered(context.recorder)
        earlier = yield from _earlier(context, number, calls)
        text = _difference(said, number, is_same) + earlier
        raise context.in_disorder(CollectiveMismatch(text), tell=False)
    if not words[6]:
        context.cache.runs_in_c.add(statement.what)


def _earlier(
    context: Context, number: int, calls: dict[int, tuple[str, str]]
) -> Generator[MPI.Request, None, str]:
    """The first calls in which ranks differed before the call of this number, for a person.

    As far as all of them remember; "" where they do not. calls: of this rank, by place: what and
    where.
    """
    first = last = max(calls, default=0)
    while first - 1 in calls:  # what came before is forgotten in part
        first -= 1
    window = np.array([first, -last], np.int64)
    yield from largest_of_all(context, window, number)
    first, last = int(window[0]), -int(window[1])
    if last < first or not first:
        return ""
    digests = [
        crc32(calls[place][0].encode()) if place in calls else 0
        for place in range(first, last + 1)
    ]
    words = np.array([digests, np.invert(digests)], np.int64)
    yield from largest_of_all(context, words, number)
    apart = np.flatnonzero(words[0] != ~words[1])
    if not apart.size:
        return ""
    what, where = calls.get(first + int(apart[0]), ("", ""))
    said = yield from everyone_says(context, f"{what}{where}", number)
    lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in groups(said)]
    head = "The first call that they do not have in common came before that:"
    return "\n".join(["", head, *lines])


def everyone_says(
    context: Context, text: str, number: int
) -> Generator[MPI.Request, None, list[str]]:
    """The texts of all ranks; at most `_MOST_TEXTS` different texts are passed on.

    `UNTOLD` stands for any other. The messages grow by 8 bytes per rank.
    """
    rank, size = context.channel.rank, len(context.channel.ranks)
    encoded = text.encode()[:_TEXT]
    digests = np.full(size, SILENT)
    digests[rank] = crc32(encoded)
    yield from largest_of_all(context, digests, number)
    _, first = np.unique(digests, return_index=True)
    speakers = np.sort(first)[:_MOST_TEXTS]  # the lowest rank of each
    rows = np.zeros((speakers.size, _TEXT), np.uint8)
    row = np.flatnonzero(speakers == rank)
    rows[row, : len(encoded)] = np.frombuffer(encoded, np.uint8)
    yield from largest_of_all(context, rows, number)
    texts = {
        int(digests[speaker]): bytes(row).rstrip(b"\0").decode(errors="ignore")
        for speaker, row in zip(speakers, rows)
    }
    return [texts.get(digest, UNTOLD) for digest in digests.tolist()]


def _difference(said: Sequence[str], number: int, is_same: bool) -> str:
    """For a person. is_same: the ranks make the same call now, and differed before."""
    lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in groups(said)]
    head = "ranks do not make the same call"
    if is_same:
        head = "ranks did not make the same calls before this one"
    return "\n".join([f"{head} (call {number} of this communicator):", *lines])


def share_blocks(
    context: Context, method: str, root: int, counts: Sequence[int], mine: int, number: int
) -> Generator[MPI.Request, None, list[int]]:
    """The bytes of all ranks' blocks, which the root knows: a generator of requests to be awaited.

    Raises CollectiveMismatch on all ranks where a rank's block has another size. counts: at the
    root. mine: bytes of this rank's own block.
    """
    size, rank = len(context.channel.ranks), context.channel.rank
    words = np.full((2, size), SILENT)
    words[1, rank] = mine
    if rank == root:
        words[0] = counts
    yield from largest_of_all(context, words, number)
    for other in np.flatnonzero(words[0] != words[1]):
        text = (
            f"{method}: rank {other} has a block of {words[1, other]} bytes, "
            f"the root ({root}) says {words[0, other]}"
        )
        raise context.in_disorder(CollectiveMismatch(text), tell=False)
    agreed: list[int] = words[0].tolist()
    return agreed


def compare_blocks(
    context: Context, method: str, sent: Sequence[int], expected: Sequence[int], number: int
) -> Iterator[MPI.Request]:
    """Raise CollectiveMismatch on all ranks where a receiver expects another size of a block.

    A generator of requests to be awaited. sent: bytes of the block for each rank. expected: bytes
    of the block from each rank.
    """
    rank, size = context.channel.rank, len(context.channel.ranks)
    tag = comparing_tag(context.channel, number)
    own_sizes = np.array(sent, np.int64)
    peer_sizes = np.array(expected, np.int64)
    for distance in range(1, size):
        target, source = (rank + distance) % size, (rank - distance) % size
        received = peer_sizes[source : source + 1]
        yield from context.channel.exchange(
            received, source, own_sizes[target : target + 1], target, tag)
    wrong = [
        f"it expects {expected[other]} bytes of rank {other}, which has {peer_sizes[other]} for it"
        for other in range(size)
        if peer_sizes[other] != expected[other]
    ]
    yield from agree_on_sizes(context, method, wrong, number)


def agree_on_sizes(
    context: Context, method: str, wrong: Sequence[str], number: int
) -> Iterator[MPI.Request]:
    """Raise CollectiveMismatch on all ranks where one has something to say.

    A generator of requests to be awaited. wrong: what this rank expects otherwise.
    """
    words = np.array([len(wrong)], np.int64)
    yield from largest_of_all(context, words, number)
    if words[0]:
        said = yield from everyone_says(context, ", ".join(wrong), number)
        lines = [f"  rank {other}: {text}" for other, text in enumerate(said) if text]
        text = "\n".join([f"{method}: blocks have other sizes than expected:", *lines])
        raise context.in_disorder(CollectiveMismatch(text), tell=False)
