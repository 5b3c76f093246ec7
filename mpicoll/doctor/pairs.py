"""Messages between pairs of nodes: latency, bandwidth and checksums, in both directions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

from .records import PairResult
from .waiting import Patience

#: bytes of the first message of a pair, which says how long the others may be: more than an idle
#: link's buffers take at once
FIRST = 256 << 10
#: and of the longest
LONGEST = 8 << 20
#: seconds for all rounds of the tournament, and for one round
ALL_ROUNDS = 40.0
ONE_ROUND = 1.2
#: messages of a pair in one direction, at most
_MESSAGES = 5
#: round trips of the latency, at most; and seconds for them
_TRIPS = 200
_TRIPS_SECONDS = 0.06
#: seconds between two looks at a large message, where ranks share cores
_PAUSE = 1e-4
#: bytes of messages whose receiver comes late, to see which leave before: powers of two, less some
#: for MPI's own words
LATE = [(15 << power) // 16 for power in range(10, 19)]
#: seconds for such a message, beside twice those that its bytes take
_UNAWAITED = 0.02
#: more nodes than this play a sample of the rounds
MOST_ROUNDS = 64
_PING = 1
_HEADER = 2
_READY = 3
_PAYLOAD = 4
_ACK = 5

Round = list[tuple[int, int]]


def tournament(count: int) -> list[Round]:
    """Rounds in which each of `count` nodes meets each other once, in disjoint pairs.

    The circle method: one node stays, the others move on by a place. With an odd number one node
    pauses in each round. Above `MOST_ROUNDS` rounds an even sample of them.

    >>> tournament(3)
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    places: list[int] = list(range(count + count % 2))
    rounds: list[Round] = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = zip(places[:half], reversed(places[half:]))
        pairs = sorted((min(pair), max(pair)) for pair in met)
        rounds.append([pair for pair in pairs if pair[1] < count])
        places = [places[0], places[-1], *places[1:-1]]
    step = len(rounds) / MOST_ROUNDS
    return rounds if step <= 1 else [rounds[int(step * number)] for number in range(MOST_ROUNDS)]


class Prober:
    """Measures pairs of ranks of a communicator. Its methods are called on all ranks."""

    def __init__(self, comm: MPI.Intracomm, patience: Patience) -> None:
        self._comm = comm
        self._patience = patience
        self._outgoing: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._incoming = np.empty(0, np.uint8)
        #: bytes that this rank sent and received
        self.carried = 0

    def play(
        self, rounds: Sequence[Round], members: Sequence[int], seconds: float | None = None
    ) -> list[PairResult]:
        """Measure the pairs of each round at the same time.

        rounds: of positions in `members`, the ranks that take part. seconds: for one round, by
        default as many as there is time for. The results say positions, not ranks. Collective over
        all ranks: those without a pair sleep.
        """
        budget = seconds or min(ONE_ROUND, ALL_ROUNDS / max(len(rounds), 1))
        own: list[PairResult] = []
        place = {rank: position for position, rank in enumerate(members)}
        position = place.get(self._comm.Get_rank())
        for number, pairs in enumerate(rounds):
            self._patience.meet("a round of messages between nodes")
            for first, second in pairs:
                if position in (first, second):
                    peer = members[second if position == first else first]
                    sent = self._measure(peer, position == first, budget)
                    own.append(sent(first, second) if position == first else sent(second, first))
        everyone = self._patience.gather(own, "the messages between nodes")
        return [result for results in everyone for result in results]

    def eager(self, source: int, target: int, bandwidth: float) -> int:
        """Bytes of the longest message of two ranks that ends before its receiver is there.

        bandwidth: bytes per second between them. Collective.
        """
        self._patience.meet("the messages of a pair")
        longest = 0
        if self._comm.Get_rank() == source:
            longest = self._send_unawaited(target, bandwidth)
        elif self._comm.Get_rank() == target:
            self._receive_late(source)
        return max(self._patience.gather(longest, "messages without a receiver"))

    def _send_unawaited(self, peer: int, bandwidth: float) -> int:
        longest = 0
        for nbytes in LATE:
            request = self._comm.Isend(self._payload(nbytes), peer, _PAYLOAD)
            end = time.perf_counter() + _UNAWAITED + 2 * nbytes / bandwidth
            while not (has_left := request.Test()) and time.perf_counter() < end:
                os.sched_yield()
            self._exchange(np.array([nbytes], np.int64), None, peer, _HEADER)
            if not has_left:
                self._patience.finish([request], self._told(peer))
                break
            longest = nbytes
        self._exchange(np.zeros(1, np.int64), None, peer, _HEADER)
        return longest

    def _receive_late(self, peer: int) -> None:
        header = np.zeros(1, np.int64)
        while True:
            self._exchange(None, header, peer, _HEADER)
            if not header[0]:
                return
            self._exchange(None, np.empty(header[0], np.uint8), peer, _PAYLOAD)

    def _payload(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The first bytes of this rank's noise."""
        if self._outgoing is None:
            noise = np.random.default_rng(self._comm.Get_rank())
            self._outgoing = noise.integers(0, 256, LONGEST, np.uint8)
        return self._outgoing[:nbytes]

    def decide(self, value: float) -> float:
        """Rank 0's value, on all ranks. Collective."""
        return self._patience.gather(value, "the messages between nodes")[0]

    def _measure(self, peer: int, first: bool, budget: float) -> Any:
        """Both directions with one peer; a function of source and target that makes the result."""
        latency, clock = self._ping(peer) if first else self._pong(peer)
        if first:
            figures = self._send(peer, budget / 2)
            self._receive(peer)
        else:
            self._receive(peer)
            figures = self._send(peer, budget / 2)
        nbytes, bandwidth, wrong = figures

        def result(source: int, target: int) -> PairResult:
            return PairResult(source, target, latency, bandwidth, nbytes, wrong, 1, clock)

        return result

    def _exchange(self, send: Any, receive: Any, peer: int, tag: int) -> None:
        """Send or receive a small message; None where there is none in that direction."""
        requests = []
        if receive is not None:
            requests.append(self._comm.Irecv(receive, peer, tag))
        if send is not None:
            requests.append(self._comm.Isend(send, peer, tag))
        self._patience.finish(requests, f"{self._told(peer)}")

    def _told(self, peer: int) -> str:
        return f"the exchange of ranks {self._comm.Get_rank()} and {peer}"

    def _ping(self, peer: int) -> tuple[float, float]:
        """(seconds one way, seconds by which the peer's clock is ahead)."""
        asked = np.zeros(1)
        answered = np.zeros(1)
        best = float("inf")
        ahead = 0.0
        end = time.perf_counter() + _TRIPS_SECONDS
        for trip in range(_TRIPS):
            last = trip == _TRIPS - 1 or (trip > 5 and time.perf_counter() > end)
            asked[0] = 1.0 if last else 0.0
            begin = time.perf_counter()
            now = time.time()
            self._exchange(asked, None, peer, _PING)
            self._exchange(None, answered, peer, _PING)
            took = time.perf_counter() - begin
            if took < best:
                best = took
                ahead = float(answered[0]) - (now + took / 2)
            if last:
                break
        figures = np.array([best / 2, -ahead])
        self._exchange(figures, None, peer, _PING)
        return best / 2, ahead

    def _pong(self, peer: int) -> tuple[float, float]:
        """Answer, and take over what the peer measured."""
        asked = np.zeros(1)
        while not asked[0]:
            self._exchange(None, asked, peer, _PING)
            self._exchange(np.array([time.time()]), None, peer, _PING)
        figures = np.zeros(2)
        self._exchange(None, figures, peer, _PING)
        return float(figures[0]), float(figures[1])

    def _send(self, peer: int, budget: float) -> tuple[int, float, int]:
        """(bytes of a message, bytes per second, wrong messages) of what this rank sends."""
        began = time.perf_counter()
        nbytes = FIRST
        best = 0.0
        wrong = 0
        # a first message says how many bytes fill a sixth of the time
        took, bad = self._send_one(peer, nbytes)
        wrong += bad
        wanted = int(nbytes * budget / 6 / took)
        if wanted > nbytes:
            nbytes = min(LONGEST, wanted)
        else:
            best = nbytes / took
        for _ in range(_MESSAGES):
            if best and time.perf_counter() - began + took > budget:
                break
            took, bad = self._send_one(peer, nbytes)
            best = max(best, nbytes / took)
            wrong += bad
        self._exchange(np.zeros(2, np.int64), None, peer, _HEADER)
        return nbytes, best, wrong

    def _send_one(self, peer: int, nbytes: int) -> tuple[float, int]:
        """(seconds, whether the peer read something else)."""
        payload = self._payload(nbytes)
        verdict = np.zeros(1, np.int64)
        self._exchange(np.array([nbytes, crc32(payload.data)], np.int64), None, peer, _HEADER)
        self._exchange(None, verdict, peer, _READY)
        begin = time.perf_counter()
        requests = [
            self._comm.Irecv(verdict, peer, _ACK),
            self._comm.Isend(payload, peer, _PAYLOAD),
        ]
        self._patience.finish(requests, self._told(peer), _PAUSE)
        took = time.perf_counter() - begin
        self._exchange(None, verdict, peer, _ACK)
        self.carried += nbytes
        return took, int(verdict[0])

    def _receive(self, peer: int) -> None:
        """Receive what `_send` of the peer sends, and compare its checksums."""
        header = np.zeros(2, np.int64)
        while True:
            self._exchange(None, header, peer, _HEADER)
            nbytes, checksum = map(int, header)
            if not nbytes:
                return
            if self._incoming.size < nbytes:
                self._incoming = np.zeros(nbytes, np.uint8)
            payload = self._incoming[:nbytes]
            request = self._comm.Irecv(payload, peer, _PAYLOAD)
            done = np.zeros(1, np.int64)
            self._exchange(done, None, peer, _READY)
            self._patience.finish([request], self._told(peer), _PAUSE)
            self._exchange(done, None, peer, _ACK)
            done[0] = crc32(payload.data) != checksum
            self._exchange(done, None, peer, _ACK)
            self.carried += nbytes
