"""A barrier that names the ranks that did not come."""

from __future__ import annotations

from os import sched_yield
from time import perf_counter

import torch

from ..communicator import Communicator
from ..errors import CollectiveTimeout
from .messages import OWN_TAG, TensorMessage, receive, send


def monitored_barrier(comm: Communicator, seconds: float, all_ranks: bool) -> None:
    """Rank 0 awaits a message of each other rank, for so many seconds, then answers them all.

    Raises CollectiveTimeout; on rank 0 with the first rank that did not come, or with all of them.
    The texts are PyTorch's, for which scripts look.
    """
    word = torch.zeros(1, dtype=torch.uint8)
    rank = comm.Get_rank()
    until = perf_counter() + seconds
    limit = f"in {seconds * 1000:.0f} ms"
    if rank:
        is_sent = _comes(send(comm, OWN_TAG, word, 0), until)
        if not (is_sent and _comes(receive(comm, OWN_TAG, word, 0), until)):
            raise CollectiveTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: no answer {limit}; rank 0 says who is missing"
            )
        return
    peers = range(1, comm.Get_size())
    messages = {peer: receive(comm, OWN_TAG, word.clone(), peer) for peer in peers}
    missing = []
    for peer, message in messages.items():
        if not _comes(message, until):
            missing.append(peer)
            if not all_ranks:
                break
    if missing:
        ranks = f"Rank{'s' if all_ranks else ''} {', '.join(map(str, missing))}"
        raise CollectiveTimeout(
            f"[Rank 0]: {ranks} failed to pass monitoredBarrier {limit}: "
            "Rank 0 timed out in monitoredBarrier"
        )
    for peer in peers:
        send(comm, OWN_TAG, word, peer).wait()


def _comes(message: TensorMessage, until: float) -> bool:
    """Whether the message is over by then; else it is given up."""
    while not message.Test():
        if perf_counter() > until:
            message.forget()
            return False
        sched_yield()
    return True
