"""The progress bar of rank 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ...support.optional import require

#: advance(samples, loss, hidden)
Advance: TypeAlias = Callable[[int, float, float | None], None]


@contextmanager
def progress_bar(samples: int, done: int, shown: bool) -> Iterator[Advance]:
    """Yield `advance(count, loss, hidden)`, which moves a bar if it is `shown`.

    The bar has `samples` samples, of which `done` are done.

    hidden: the part of the communication that computation hides, or None.
    """
    if not shown:
        yield lambda count, loss, hidden: None
        return
    seconds = 0.1 if sys.stderr.isatty() else 30  # in the log of a batch job each state is a line
    with require("tqdm").tqdm(
        total=samples,
        initial=done,
        unit=" samples",
        unit_scale=True,
        dynamic_ncols=True,
        mininterval=seconds,
    ) as bar:

        def advance(count: int, loss: float, hidden: float | None) -> None:
            shown = {} if hidden is None else {"hidden": f"{hidden:.0%}"}
            bar.set_postfix(loss=f"{loss:.4f}", **shown, refresh=False)
            bar.update(count)

        yield advance
