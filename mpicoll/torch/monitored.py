"""A barrier that says which ranks did not come."""

from __future__ import annotations

from os import sched_yield
from time import perf_counter

import torch

from ..communicator import Communicator
from ..errors import CollectiveTimeout
from .messages import OWN_TAG, Message, receive, send


def monitored_barrier(comm: Communicator, seconds: float, all_ranks: bool) -> None:
    """Rank 0 hears from all others within so many seconds, then lets them go.

    Raises CollectiveTimeout; on rank 0 with the first rank that did not come, or with all of them.
    """
    word, rank = torch.zeros(1, dtype=torch.uint8), comm.Get_rank()
    until, limit = perf_counter() + seconds, f"in {seconds * 1000:.0f} ms"
    if rank:
        if not (_comes(send(comm, OWN_TAG, word, 0), until) and _comes(receive(comm, OWN_TAG, word, 0), until)):
            # PyTorch's words, for which scripts look
            raise CollectiveTimeout(f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                                    f"send/recv from rank 0: no answer {limit}; rank 0 says who is missing")  # fmt: skip
        return
    awaited = {peer: receive(comm, OWN_TAG, word.clone(), peer) for peer in range(1, comm.Get_size())}
    missing = []
    for peer, message in awaited.items():
        if not _comes(message, until):
            missing.append(peer)
            if not all_ranks:
                break
    if missing:
        who = f"Rank{'s' if all_ranks else ''} {', '.join(map(str, missing))}"
        raise CollectiveTimeout(f"[Rank 0]: {who} failed to pass monitoredBarrier {limit}: "
                                "Rank 0 timed out in monitoredBarrier")  # fmt: skip
    for peer in awaited:
        send(comm, OWN_TAG, word, peer).wait()


def _comes(message: Message, until: float) -> bool:
    """Whether it is over by then."""
    while not message.Test():
        if perf_counter() > until:
            message.forget()
            return False
        sched_yield()
    return True
