"""A collective for which nobody waits, but somebody wants to be called at its end: futures of other libraries, say."""

from collections.abc import Callable, Iterator, Sequence

from ..buffers import Operand, device_of
from ..execute import Context, Record, Task
from .beginning import Hold


def as_task(then: Callable[[], object], finish: Callable[[], object] | None) -> Hold:
    """What makes a call's `Task`. then: called after its end, in any thread; it may wait for other tasks.

    finish: the task's last step, before anybody learns that it has ended.
    """
    def hold(
        context: Context, steps: Iterator[object], record: Record, operands: Sequence[Operand], track: int | None
    ) -> Task:
        steps = steps if finish is None else _followed_by(steps, finish)
        return context.submit(steps, record, device=device_of(operands), then=then, track=track)

    return hold


def _followed_by(steps: Iterator[object], last: Callable[[], object]) -> Iterator[object]:
    yield from steps
    last()
