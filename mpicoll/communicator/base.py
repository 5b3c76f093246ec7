"""What every collective of a `Communicator` calls: the way into `calls`, and small calls to MPI."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Callable

from mpi4py import MPI

from ..calls import (
    GuardedPlan, Request, begin, begin_again, comparing_results, guarded, persist, refused,
    repeated, run, wait_for_results, with_results_compared,
)
from ..errors import MpicollError
from ..execute import ABANDONED, Context, owning
from ..support.callsite import quick_site
from ..support.settings import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..calls import Call, Hold
    from .handles import Plan

    Understand = Callable[..., Call]  # a function of `calls.arguments`
    IsSmall = Callable[[Any, Any, Any], bool]

#: what mpi4py and MPI raise for arguments that they do not take
REFUSALS = ValueError, TypeError, KeyError, BufferError, MPI.Exception
_REFUSED = {
    MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_ARG,
    MPI.ERR_ROOT,
}
_IN_PLACE = MPI.IN_PLACE


def _test(
    method: str, kind: type, share: Callable[[Base], int] = lambda comm: 0
) -> cached_property[IsSmall]:
    """A property: the test of `SmallCalls` for a method, looked up once per wrapper.

    share: as there, of a communicator.
    """

    def find(comm: Base) -> IsSmall:
        if not comm:
            return lambda vector, other, what: False
        return comm._context.small.test(method, kind, share(comm))

    return cached_property(find)


def _test_of_rooted(method: str) -> cached_property[IsSmall]:
    """The same of (vector, block, root): the vector counts at the root, the block elsewhere."""
    test = _test(method, int, share=MPI.Comm.Get_size)

    def find(comm: Base) -> IsSmall:
        is_small = test.func(comm)
        rank = comm.Get_rank() if comm else 0

        def of_rank(vector: object, block: object, root: object) -> bool:
            if root == rank:
                return is_small(vector, block, root)
            return is_small(block, vector, root)

        return of_rank

    return cached_property(find)


class Base(MPI.Intracomm):
    """How calls are served; the collectives use `_serve`, `_begin` and `_persist` alone."""

    def _serve(
        self, understand: Understand, given: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> None:
        """Serve a blocking call; one served before on the same memory is not parsed again."""
        if not self:
            understand(self, *given)  # says that the communicator was freed
        if self._context.check != ALWAYS:
            self._serve_one(understand, given, algorithm, segment_bytes)
            return
        with self._telling():
            self._serve_one(understand, given, algorithm, segment_bytes)

    def _serve_one(
        self, understand: Understand, given: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> None:
        context = self._context
        key = repeated(understand, given, algorithm, segment_bytes)
        known = context.known.find(key)
        if known is not None and known.is_small and context.recorder.may_pass:
            known.native(self, *given)
            context.small.note(known.text)
            return
        if context.check == ALWAYS:
            known = None
        text = understand.__name__ if known is None else known.text
        # what is not understood yet may be refused, and is no call then
        record = context.recorder.blocking.begin(text, quick_site(), ordered=known is not None)
        try:
            if known is None:
                run(understand(self, *given), record, algorithm, segment_bytes, key)
            else:
                known.run(record, self, given, key)
            if context.digest_every:
                wait_for_results(context, comparing_results(context, understand.__name__, given))
        except BaseException as error:
            told = context.explained(error) if isinstance(error, Exception) else error
            is_scheduled = known is None or record.plan is not None
            is_ours = isinstance(told, (MpicollError, MPI.Exception))
            if record.place and is_scheduled and not is_ours:
                # of a signal handler, say: begun or left out, the call would not match the others'
                context.in_disorder(context.reason(record.text, error))
            if context.is_used_by_mpi:
                ABANDONED.append(given)
            if told is not error:
                raise told from error
            raise
        finally:
            record.end()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Where all calls are compared, tell the other ranks of an error before that, too.

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
        self, understand: Understand, given: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None,
    ) -> MPI.Request:
        """Begin a non-blocking call."""
        request: MPI.Request
        request = self._begin_held(understand, given, algorithm, segment_bytes, Request)
        return request

    def _begin_held(
        self, understand: Understand, given: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None, hold: Hold,
    ) -> Any:
        """Begin one; returns what `hold` makes, or MPI's own request where MPI serves it alone.

        One that was begun before on memory of the same shape is not parsed again.
        """
        if self and self._context.check != ALWAYS:
            return self._begin_one(understand, given, algorithm, segment_bytes, hold)
        with self._telling():
            return self._begin_one(understand, given, algorithm, segment_bytes, hold)

    def _begin_one(
        self, understand: Understand, given: tuple[object, ...],
        algorithm: str | None, segment_bytes: int | None, hold: Hold,
    ) -> Any:
        key = repeated((begin, understand), given, algorithm, segment_bytes) if self else None
        known = None
        if key is not None and self._context.check != ALWAYS:
            known = self._context.known.find(key)
        try:
            if self and self._context.digest_every:
                results = comparing_results(self._context, understand.__name__, given)
                hold = with_results_compared(hold, results)
            if key is None or known is None:
                call = understand(self, *given)
                if self._context.check == ALWAYS:
                    hold = guarded(hold, call)
                return begin(call, algorithm, segment_bytes, key, hold)
            parse = partial(understand, self, *given)
            return begin_again(self, self._context, known, key, parse, given, hold)
        except MPI.Exception as error:
            self._context.raise_explained(error)

    def _begin_small(
        self, native: Callable[..., MPI.Request], understand: Understand, given: tuple[Any, ...]
    ) -> MPI.Request:
        """Begin one that goes to MPI without being parsed."""
        try:
            return owning(native(self, *given), given)
        except REFUSALS as error:
            self._raise_unless_refused(error)
        return self._begin(understand, given, None, None)

    def _raise_unless_refused(self, error: Exception) -> None:
        """Raise it again, unless MPI refused the arguments before anything was sent.

        Then we serve the call or say why not.
        """
        if isinstance(error, MPI.Exception) and error.Get_error_class() not in _REFUSED:
            raise error
        self._context.small.withdraw()

    def _persist(
        self, understand: Understand, given: tuple[object, ...], info: MPI.Info,
        algorithm: str | None, segment_bytes: int | None,
    ) -> Plan:
        """Make the plan of a call."""
        try:
            with self._telling():
                call = understand(self, *given)
                plan: Plan = persist(call, info, algorithm, segment_bytes)
            return GuardedPlan(plan, call) if self._context.check == ALWAYS else plan
        except MPI.Exception as error:
            self._context.raise_explained(error)

    @cached_property
    def _context(self) -> Context:
        """Looked up once per wrapper: `Dup` and its like make new ones."""
        return Context.of(self)

    # Whether a call is small, by method.

    _small_bcast = _test("Bcast", int)
    _small_ibcast = _test("Ibcast", int)
    _small_allreduce = _test("Allreduce", MPI.Op)
    _small_iallreduce = _test("Iallreduce", MPI.Op)
    _small_allgather = _test("Allgather", type(None), share=MPI.Comm.Get_size)
    _small_iallgather = _test("Iallgather", type(None), share=MPI.Comm.Get_size)
    _small_alltoall = _test("Alltoall", type(None), share=lambda comm: 1)
    _small_ialltoall = _test("Ialltoall", type(None), share=lambda comm: 1)
    _small_reduce_scatter = _test("Reduce_scatter_block", MPI.Op, share=MPI.Comm.Get_size)
    _small_gather = _test_of_rooted("Gather")
    _small_scatter = _test_of_rooted("Scatter")
