"""Collectives begun for futures of other libraries, or in order to wait for them at once."""

from collections.abc import Callable, Iterator, Sequence

from ..buffers import Operand, device_of
from ..execute import PROGRESS, Context, Record, Task
from .beginning import Hold


def as_task(then: Callable[[], object], finish: Callable[[], object] | None) -> Hold:
    """What makes a call's `Task`. then: called after its end, in any thread; it may wait for other tasks.

    finish: the task's last step, before anybody learns that it has ended.
    """

    def hold(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None
    ) -> Task:
        steps = _followed_by(steps, finish)
        return context.submit(steps, record, device=device_of(operands), then=then, track=track)

    return hold


def at_once(finish: Callable[[], object] | None) -> Hold:
    """What makes a call's `Task` and waits for its end. finish: as of `as_task`. Raises what went wrong."""

    def hold(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None
    ) -> Task:
        steps = _followed_by(steps, finish)
        return PROGRESS.run(Task(steps, context.queue, record, device=device_of(operands), track=track))

    return hold


def _followed_by(steps: Iterator[object], last: Callable[[], object] | None) -> Iterator[object]:
    yield from steps
    if last is not None:
        last()
