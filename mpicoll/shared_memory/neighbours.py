"""The other processes of a node: whether they and this one see each other's memory, and where it is mapped here."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import gpu_mode
from ..support import settings
from .heap import HEAP, OFFSET_BITS, Block, Segment, words_at

#: processors that other cores see the writes of in the order in which they are made
_ORDERED = ("x86_64", "AMD64", "i686")


class Card(NamedTuple):
    """By which others find a process's memory. rings: the location of its rings; refusal: why it shares none, or ""."""

    pid: int
    descriptor: int
    token: int
    rings: int
    refusal: str


class Neighbour:
    """The memory of another process, mapped as it is needed. Raises OSError or ValueError where it cannot be."""

    _known: dict[tuple[int, int], Neighbour] = {}
    _lock = threading.Lock()

    def __init__(self, card: Card) -> None:
        self._card = card
        self._segments = {0: self._map(card.descriptor, None)}
        if self._segments[0].words[0] != card.token:
            raise ValueError(f"/proc/{card.pid} is another process here: process numbers have separate namespaces")

    @classmethod
    def of(cls, card: Card) -> Neighbour:
        """That of a card."""
        with cls._lock:
            key = card.pid, card.token
            if key not in cls._known:
                cls._known[key] = cls(card)
            return cls._known[key]

    def _map(self, descriptor: int, nbytes: int | None) -> Segment:
        opened = os.open(f"/proc/{self._card.pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            return Segment(opened, os.fstat(opened).st_size if nbytes is None else nbytes)
        finally:
            os.close(opened)

    def address(self, location: int) -> int:
        """Where a location of that process lies in this one."""
        number = location >> OFFSET_BITS
        segment = self._segments.get(number)
        if segment is None:
            table = self._segments[0].words
            segment = self._segments[number] = self._map(table[1 + 2 * number], table[2 + 2 * number])
        return segment.address + (location & (1 << OFFSET_BITS) - 1)

    def words(self, location: int, nbytes: int) -> Any:
        """Memory of that process as 64-bit words."""
        return words_at(self.address(location), nbytes)


class Neighbours(NamedTuple):
    """What came of it. refusal: why nodes share no memory, those that do not, or "".

    cards: of the ranks of this node, by rank; block: where this rank's rings lie, or None where it has none.
    """

    refusal: str
    cards: dict[int, Card]
    block: Block | None


def refusal() -> str:
    """Why this process shares no memory with others, or ""."""
    if not settings.shared_memory():
        return f"{settings.SHARED_MEMORY}=off"
    if not hasattr(os, "memfd_create"):
        return "the system has no memfd_create"
    if platform.machine() not in _ORDERED:
        return f"the processor ({platform.machine()}) may reorder writes"
    if gpu_mode() == settings.DIRECT:
        return "MPI is given device pointers, which other ranks' memory may be"
    return ""


def meet(comm: MPI.Comm, nodes: Sequence[int], nbytes: int) -> Neighbours:
    """Find out whether the ranks of each node see each other's memory, and tell everyone. Collective.

    nodes: of each rank. nbytes: of the rings that this rank needs for each other rank of its node.
    """
    rank = comm.Get_rank()
    here = [other for other, node in enumerate(nodes) if node == nodes[rank]]
    if len(set(nodes)) == len(nodes):
        return Neighbours("", {}, None)
    problem, block, card = refusal(), None, Card(0, 0, 0, 0, "")
    if not problem and len(here) > 1:
        try:
            descriptor, block = HEAP.descriptor(), HEAP.acquire(nbytes * len(here))
            # before anybody knows of it: what an earlier communicator left there would be read as messages
            words_at(block.address, block.nbytes)[:] = memoryview(bytes(block.nbytes)).cast("Q")
            card = Card(os.getpid(), descriptor, HEAP.token, block.location, "")
        except OSError as error:
            problem = f"no memory to share: {error.strerror or error}"
    cards = MPI.Comm.allgather(comm, card._replace(refusal=problem))
    mine = {other: cards[other] for other in here}
    if len(here) > 1 and not any(one.refusal for one in mine.values()):
        problem = _mapped(mine, rank)
    problems: list[str] = MPI.Comm.allgather(comm, problem)
    texts = {nodes[other]: f"rank {other}: {text}" for other, text in reversed(list(enumerate(problems))) if text}
    refused = "; ".join(texts.values())
    if block is not None and nodes[rank] in texts:
        HEAP.release(block)
        block = None
    return Neighbours(refused, mine if block is not None else {}, block)


def _mapped(cards: dict[int, Card], rank: int) -> str:
    """Map the memory of the others; why that fails, or ""."""
    for other, card in cards.items():
        if other != rank:
            try:
                Neighbour.of(card)
            except (OSError, ValueError) as error:
                return f"the memory of rank {other} cannot be mapped: {error}"
    return ""
