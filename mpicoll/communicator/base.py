"""What every collective of a `Communicator` calls: the way into `calls`."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Callable

from mpi4py import MPI

from ..calls import (
    LEARNT,
    GuardedPlan,
    Request,
    begin,
    begin_again,
    begin_at_once,
    compare_results,
    count_call,
    guarded,
    key_of,
    persist,
    refused,
    run,
    run_again,
    with_results_compared,
)
from ..errors import ArgumentError
from ..execute import Context
from ..support.callsite import quick_site
from ..support.settings import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..calls import Call, Submit
    from ..execute import IsServed
    from .handles import Plan

    Parse = Callable[..., Call]  # a function of `calls.arguments`


def _door(method: str) -> cached_property[IsServed]:
    """A property: a function of a call's arguments that serves it, or returns False."""

    def find(comm: Base) -> IsServed:
        if not comm:
            return lambda *args: False
        return comm._context.doors.of(method)

    return cached_property(find)


def _door_of(parse: Parse) -> str:
    """The name of the door of a call that does not block."""
    return "i" + parse.__name__


class Base(MPI.Intracomm):
    """Entry points of all collectives: `_serve`, `_begin` and `_persist`."""

    def _serve(
        self, parse: Parse, args: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> None:
        """Serve a blocking call; a repeated call on the same memory is not parsed again."""
        if not self:
            parse(self, *args)  # raises: the communicator was freed
        if self._context.check != ALWAYS:
            self._serve_one(parse, args, algorithm, segment_bytes)
            return
        with self._announcing_errors():
            self._serve_one(parse, args, algorithm, segment_bytes)

    def _serve_one(
        self, parse: Parse, args: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> None:
        context = self._context
        key = key_of(parse, args, algorithm, segment_bytes)
        entry = context.cache.find(key)
        if entry is not None and context.is_compared(entry):
            entry = None  # it has to be parsed
        text = parse.__name__ if entry is None else entry.text
        record = context.recorder.blocking
        site = quick_site()

        def serve() -> None:
            # unordered until it is parsed: a call with wrong arguments does not count
            record.begin(text, site, ordered=entry is not None)
            if entry is None:
                operation = run(parse(self, *args), record, algorithm, segment_bytes, key)
            else:
                again = partial(parse, self, *args)
                operation = run_again(entry, record, key, self, args, again)
            if operation is not None:
                wanted = (*args, algorithm, segment_bytes)
                context.doors.learn(parse.__name__, wanted, operation, record.text)
            if context.digest_every:
                compare_results(context, parse.__name__, args)
            if parse.__name__ in LEARNT:
                count_call(context, parse.__name__)

        # one that MPI serves by itself has ended when a handler raises
        context.serve(serve, record, args, is_scheduled=entry is None or entry.method is None)

    @contextmanager
    def _announcing_errors(self) -> Iterator[None]:
        """Where ranks compare all calls, tell the others of an error before the comparison.

        They would wait for this rank.
        """
        context = self._context if self else None
        compared = context and context.comparisons
        try:
            yield
        except Exception as error:
            if (
                context
                and context.check == ALWAYS
                and context.comparisons == compared
                and not context.broken
            ):
                refused(context, error)
            raise

    def _begin(
        self, parse: Parse, args: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> MPI.Request:
        """Begin a non-blocking call."""
        if self:
            wanted = (*args, algorithm, segment_bytes)
            begun = begin_at_once(_door_of(parse), self._context, wanted)
            if begun is not None:
                return begun
        request: MPI.Request = self._begin_with(parse, args, algorithm, segment_bytes, Request)
        return request

    def _begin_with(
        self, parse: Parse, args: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None, submit: Submit,
    ) -> Any:
        """Begin a call; returns as `calls.begin`.

        A repeated call on memory of the same shape is not parsed again.
        """
        if self and self._context.check != ALWAYS:
            return self._begin_one(parse, args, algorithm, segment_bytes, submit)
        with self._announcing_errors():
            return self._begin_one(parse, args, algorithm, segment_bytes, submit)

    def _begin_one(
        self, parse: Parse, args: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None, submit: Submit,
    ) -> Any:
        key = key_of((begin, parse), args, algorithm, segment_bytes) if self else None
        entry = None
        if key is not None and self._context.check != ALWAYS:
            entry = self._context.cache.find(key)
        try:
            if self and self._context.digest_every:
                submit = with_results_compared(submit, self._context, parse.__name__, args)
            if key is None or entry is None:
                call = parse(self, *args)
                if self._context.check == ALWAYS:
                    submit = guarded(submit, call)
                return begin(call, algorithm, segment_bytes, key, submit)
            door = _door_of(parse)
            parse_args = partial(parse, self)
            return begin_again(entry, key, self, self._context, args, parse_args, submit, door)
        except MPI.Exception as error:
            self._context.raise_explained(error)

    def _persist(
        self, parse: Parse, args: tuple[object, ...], info: MPI.Info,
        algorithm: str | None, segment_bytes: int | None,
    ) -> Plan:
        """Create the plan of a call."""
        try:
            with self._announcing_errors():
                if not isinstance(info, MPI.Info):
                    raise ArgumentError(f"expected an MPI.Info, as MPI.INFO_NULL, got {info!r}")
                call = parse(self, *args)
                plan = persist(call, info, algorithm, segment_bytes)
            return GuardedPlan(plan, call) if self._context.check == ALWAYS else plan
        except MPI.Exception as error:
            self._context.raise_explained(error)

    @cached_property
    def _context(self) -> Context:
        """Looked up once per wrapper: `Dup` and its like create new ones."""
        return Context.of(self)

    # Repeated calls, by method.

    _passes_bcast = _door("bcast")
    _passes_scatter = _door("scatter")
    _passes_gather = _door("gather")
    _passes_allgather = _door("allgather")
    _passes_alltoall = _door("alltoall")
    _passes_reduce = _door("reduce")
    _passes_allreduce = _door("allreduce")
    _passes_reduce_scatter_block = _door("reduce_scatter_block")
    _passes_scan = _door("scan")
    _passes_exscan = _door("exscan")
    _passes_barrier = _door("barrier")
