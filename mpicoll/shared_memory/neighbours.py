"""The other processes of a node: whether they and this one see each other's memory, and where it is mapped here."""

from __future__ import annotations

import os
import platform
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from ..buffers import gpu_mode
from ..support import settings
from .bell import BELL
from .heap import HEAP, TABLE_BYTES, Block, Table, offset_of
from .mapping import Mapping, words_at

#: processors that other cores see the writes of in the order in which they are made
_ORDERED = ("x86_64", "AMD64", "i686")
#: mappings of segments that their owner has given up are kept until there are more: a call that was given up may be in one
_KEPT = 16


class Card(NamedTuple):
    """By which others find a process's memory.

    rings: the location of its rings. refusal: why it shares none, or "". bell: where its `Bell` is.
    """

    pid: int
    descriptor: int
    token: int
    rings: int
    refusal: str
    bell: tuple[int, int]


class Neighbour:
    """The memory of another process, mapped as it is needed. Raises OSError or ValueError where it cannot be.

    Its file stays open: a process that has no descriptors left fails where ranks meet, and not in a call.
    """

    _known: dict[tuple[int, int], Neighbour] = {}
    _lock = threading.Lock()

    def __init__(self, card: Card) -> None:
        self._descriptor = os.open(f"/proc/{card.pid}/fd/{card.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            mapping = Mapping(self._descriptor, 0, TABLE_BYTES)
            self._table = Table(words_at(mapping.address, TABLE_BYTES))
            if self._table.token != card.token:
                mapping.close()
                raise ValueError(f"/proc/{card.pid} is another process here: process numbers have separate namespaces")
        except (OSError, ValueError):
            os.close(self._descriptor)
            raise
        self._mapped: list[Mapping] = []  # by offset
        self._ended: deque[Mapping] = deque()

    @classmethod
    def of(cls, card: Card) -> Neighbour:
        """That of a card."""
        with cls._lock:
            key = card.pid, card.token
            if key not in cls._known:
                cls._known[key] = cls(card)
            return cls._known[key]

    def address(self, location: int) -> int:
        """Where a location of that process lies in this one."""
        mapping = self._found(location)
        if mapping is None:
            with self._lock:  # two threads may look for the same one
                mapping = self._found(location) or self._map(location)
        return mapping.address + location - mapping.offset

    def _found(self, location: int) -> Mapping | None:
        mapped = self._mapped
        place = bisect_right(mapped, location, key=offset_of) - 1
        return mapped[place] if place >= 0 and location < mapped[place].end else None

    def _map(self, location: int) -> Mapping:
        segments = self._table.segments()
        offset = next((offset for offset in segments if offset <= location < offset + segments[offset]), None)
        if offset is None:
            raise OSError(f"location {location} of another rank's memory is in no segment")
        self._ended.extend(one for one in self._mapped if one.offset not in segments)
        mapping = Mapping(self._descriptor, offset, segments[offset])
        kept = [one for one in self._mapped if one.offset in segments]
        self._mapped = sorted([*kept, mapping], key=offset_of)
        while len(self._ended) > _KEPT:
            self._ended.popleft().close()
        return mapping

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
    problem, block, card = refusal(), None, Card(0, 0, 0, 0, "", (-1, 0))
    if not problem and len(here) > 1:
        try:
            descriptor, block = HEAP.descriptor(), HEAP.acquire(nbytes * len(here))
            # before anybody knows of it: what an earlier communicator left there would be read as messages
            words_at(block.address, block.nbytes)[:] = memoryview(bytes(block.nbytes)).cast("Q")
            card = Card(os.getpid(), descriptor, HEAP.token, block.location, "", BELL.place())
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
