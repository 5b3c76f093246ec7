"""The other processes of a node: whether they and this one see each other's memory, and where it is mapped here."""

from __future__ import annotations

import os
import platform
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
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
    """By which others find a process's memory: numbers, which go around as they are.

    rank: in the communicator whose ranks meet. shares: whether it shares its memory. rings: the location of the words that
    lead to its rings. bell: the descriptor of its `Bell`, and bell_file: what tells that from other files.
    """

    rank: int
    shares: int = 0
    pid: int = 0
    descriptor: int = 0
    token: int = 0
    rings: int = 0
    bell: int = -1
    bell_file: int = 0


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
    """The processes of a communicator that read each other's memory.

    cards: of the ranks of this node, by rank, this one's among them; empty where they share no memory. problems: by rank,
    why ranks, of all nodes, share none. block: where this rank's words lie, or None where it has none.
    """

    cards: dict[int, Card]
    problems: dict[int, str]
    block: Block | None

    def but_for(self, problems: dict[int, str]) -> Neighbours:
        """The same, when all ranks know of the problems. Local."""
        if self.block is not None and self.cards.keys() <= problems.keys():
            HEAP.release(self.block)
            return Neighbours({}, problems, None)
        return self._replace(problems=problems)

    def among(self, ranks: Sequence[int], nodes: Sequence[int], rank: int) -> Neighbours:
        """The same for a communicator of some of the ranks, `rank` in it being this one. Local.

        ranks: where each of its ranks is in this communicator. nodes: the node of each of its ranks.
        """
        here = [other for other, node in enumerate(nodes) if node == nodes[rank]]
        problems = {}
        if self.problems:
            problems = {other: self.problems[one] for other, one in enumerate(ranks) if one in self.problems}
        if len(here) < 2 or self.block is None or not problems.keys().isdisjoint(here):
            return Neighbours({}, problems, None)
        return Neighbours({other: self.cards[ranks[other]] for other in here}, problems, self.block)

    def release(self) -> None:
        """No communicator uses the words any more. They stay where one was closed before others had read its messages."""
        if self.block is not None and not any(words_at(self.block.address, self.block.nbytes)):
            HEAP.release(self.block)

    def refusal(self, nodes: Sequence[int]) -> str:
        """Why nodes share no memory, those that do not, or "". nodes: of each rank."""
        if not self.problems or len(set(nodes)) == len(nodes):
            return ""
        lowest: dict[int, str] = {}
        for other, text in sorted(self.problems.items()):
            lowest.setdefault(nodes[other], f"rank {other}: {text}")
        return "; ".join(lowest.values())


#: of a communicator whose ranks have not met
NOBODY = Neighbours({}, {}, None)


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


def meet(node: MPI.Intracomm, rank: int, nbytes: int) -> tuple[Neighbours, str]:
    """The processes of this node, and why this rank shares no memory with them, or "". Collective over the node.

    All ranks have to be told of such `problems` before memory is used. rank: of this process in the communicator whose ranks
    meet. nbytes: of the words that others of the node read here, zeros.
    """
    problem, block, card = refusal(), None, Card(rank)
    if not problem and node.Get_size() > 1:
        try:
            block = HEAP.acquire(nbytes)
            clear(block)  # before other ranks know of it
            card = _card(rank, block)
        except OSError as error:
            problem = f"no memory to share: {error.strerror or error}"
    words = np.empty((node.Get_size(), len(card)), np.int64)
    node.Allgather(np.array(card, np.int64), words)
    cards = {one.rank: one for one in map(Card._make, words.tolist())}
    return Neighbours(cards, {}, block), problem or _unmapped(cards, rank)


def _card(rank: int, block: Block) -> Card:
    """That of this process. Raises OSError where it has no descriptor left."""
    return Card(rank, True, os.getpid(), HEAP.descriptor(), HEAP.token, block.location, *BELL.place())


def _unmapped(cards: dict[int, Card], rank: int) -> str:
    """Map the memory of the others that share theirs; why that fails, or ""."""
    for other, card in cards.items():
        if other != rank and card.shares:
            try:
                Neighbour.of(card)
            except (OSError, ValueError) as error:
                return f"the memory of rank {other} cannot be mapped: {error}"
    return ""


def clear(block: Block) -> None:
    """Fill a block with zeros: what an earlier communicator left there would be read as messages."""
    words_at(block.address, block.nbytes)[:] = memoryview(bytes(block.nbytes)).cast("Q")
