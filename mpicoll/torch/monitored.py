"""A barrier that names the ranks that did not come."""

from __future__ import annotations

from itertools import count
from os import sched_yield
from time import perf_counter

import torch

from ..communicator import Communicator
from ..errors import CollectiveTimeout
from .messages import OWN_TAG, TensorMessage, receive, send

#: of the barriers in which this process is rank 0
_NUMBERS = count(1)


def monitored_barrier(comm: Communicator, seconds: float, all_ranks: bool) -> None:
    """Rank 0 asks each other rank, awaits the answers for so many seconds, and lets all go on.

    Raises CollectiveTimeout; on rank 0 with the first rank that did not come, or with all of them.
    The texts are PyTorch's, for which scripts look.

    A question and its answer are the number of a barrier of rank 0; the negative number lets a rank
    go on. So messages of a barrier that a rank has given up are without effect on later ones.
    """
    rank = comm.Get_rank()
    until = perf_counter() + seconds
    limit = f"in {seconds * 1000:.0f} ms"
    if rank:
        if not _may_go_on(comm, until):
            raise CollectiveTimeout(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                f"waiting for send/recv from rank 0: no answer {limit}; rank 0 says who is missing"
            )
        return
    peers = range(1, comm.Get_size())
    number = next(_NUMBERS)
    questions = [send(comm, OWN_TAG, _word(number), peer) for peer in peers]
    missing = []
    for peer in peers:
        if not _answers(comm, peer, number, until):
            missing.append(peer)
            if not all_ranks:
                break
    for question in questions:
        _comes(question, until)
    if missing:
        ranks = f"Rank{'s' if all_ranks else ''} {', '.join(map(str, missing))}"
        raise CollectiveTimeout(
            f"[Rank 0]: {ranks} failed to pass monitoredBarrier {limit}: "
            "Rank 0 timed out in monitoredBarrier"
        )
    for peer in peers:
        send(comm, OWN_TAG, _word(-number), peer).wait()


def _may_go_on(comm: Communicator, until: float) -> bool:
    """Answer the questions of rank 0; whether it lets this rank go on by then."""
    answered = 0
    while (number := _received(comm, 0, until)) is not None:
        if number == -answered:
            return True
        if number > 0:
            answered = number
            if not _comes(send(comm, OWN_TAG, _word(number), 0), until):
                return False
    return False


def _answers(comm: Communicator, peer: int, number: int, until: float) -> bool:
    """Whether a rank answers the question of this number by then."""
    while (answered := _received(comm, peer, until)) is not None:
        if answered == number:
            return True
    return False


def _received(comm: Communicator, peer: int, until: float) -> int | None:
    """The next number from a rank; None if none comes by then."""
    word = _word(0)
    return int(word) if _comes(receive(comm, OWN_TAG, word, peer), until) else None


def _word(number: int) -> torch.Tensor:
    return torch.tensor([number], device="cpu")


def _comes(message: TensorMessage, until: float) -> bool:
    """Whether the message is over by then; else it is given up. Raises its error."""
    while not message.Test():
        if perf_counter() > until:
            message.forget()
            return False
        sched_yield()
    return message.wait()
