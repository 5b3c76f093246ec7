"""A background thread that computes the next batches during the present step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from ...support.checks import check_integer

Item = TypeVar("Item")
Value = TypeVar("Value")


def prefetched(
    function: Callable[[Item], Value],
    items: Iterable[Item],
    depth: int = 2,
) -> Generator[Value, None, None]:
    """Iterate over `function(item)` in order, computed ahead by one background thread.

    Up to `depth` items are computed ahead.

    The thread starts when the first value is asked for, and has ended when the iteration has: by
    exhaustion, an exception or `close()`, which waits for the call in progress. An exception of
    `function` is raised in its item's place. Holds at most `depth` + 1 values. Raises ArgumentError
    unless `depth` is at least 1.

    >>> list(prefetched(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    check_integer("depth", depth, 1)
    return _run(function, iter(items), depth)


def _run(
    function: Callable[[Item], Value], items: Iterator[Item], depth: int
) -> Generator[Value, None, None]:
    pool = ThreadPoolExecutor(1, thread_name_prefix="mpicoll-prefetch")
    try:
        pending = deque(pool.submit(function, item) for item in islice(items, depth))
        while pending:
            value = pending.popleft().result()
            pending.extend(pool.submit(function, item) for item in islice(items, 1))
            yield value
    finally:
        pool.shutdown(cancel_futures=True)
