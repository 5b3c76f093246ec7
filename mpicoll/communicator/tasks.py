"""A call begun for those who do not wait for it, but want to be called at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpi4py import MPI

from ..calls import arguments, as_task
from ..execute import PROGRESS, Task, until_done
from ..support.callsite import call_site
from .base import Base


def begin_task(
    comm: Base, method: str, given: Sequence[Any], then: Callable[[], object], finish: Callable[[], object] | None = None,
    algorithm: str | None = None,
) -> Task:  # fmt: skip
    """Begin a collective without waiting; returns its `Task`.

    Parameters
    ----------
    comm : Communicator
        Whose collective it is.
    method : str
        The blocking method: ``"Allreduce"``. MPI's own serves it where mpicoll has no such collective.
    given : sequence
        Its arguments, all of them. Buffers must live until the task has ended.
    then : callable
        Called once the task has ended, in any thread; it may wait for other tasks.
    finish : callable, optional
        The task's last step, before anybody learns that it has ended.
    algorithm : str, optional
        As of the method.

    Raises
    ------
    ArgumentError, BufferError
        As the method, before anything is sent; what goes wrong later is raised by whoever waits for the task.
    """
    hold, understand = as_task(then, finish), getattr(arguments, method.lower(), None)
    if understand is not None:
        begun = comm._begin_held(understand, tuple(given), algorithm, None, hold)
    else:
        begun = getattr(MPI.Intracomm, f"I{method.lower()}")(comm, *given)
    if isinstance(begun, MPI.Request):  # MPI serves it, and tells nobody
        context = comm._context
        begun = hold(context, until_done([begun]), context.recorder.begin(method, call_site()), (), None)
    task: Task = begun
    return task


def begin_messages(comm: Base, requests: Sequence[MPI.Request], come: Callable[[], object]) -> Task:
    """Have messages move while this process computes; returns their `Task`, for `wait_for`. Local.

    Parameters
    ----------
    comm : Communicator
        Which they travel on.
    requests : sequence of MPI.Request
        Of its own sends and receives; their buffers must live until the task has ended.
    come : callable
        Called when all are through, and only then.
    """

    def steps() -> Iterator[object]:
        yield from until_done(requests)
        come()

    return comm._context.submit(steps())


def wait_for(task: Task) -> None:
    """Wait for a task; raises what went wrong."""
    PROGRESS.wait(task)
