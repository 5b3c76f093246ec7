"""What every collective of a `Communicator` goes through: the way into `calls`, and the short way of small calls to MPI."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
from mpi4py import MPI

from .. import select
from ..calls import begin, persist, repeated, run
from ..execute import Context

if TYPE_CHECKING:
    from .handles import Plan

    Understand = Callable[..., Any]  # a function of `calls.arguments`
    IsSmall = Callable[[object, object], bool]

#: what mpi4py and MPI raise for arguments that they do not take
REFUSALS = ValueError, TypeError, KeyError, BufferError, MPI.Exception
_REFUSED = {MPI.ERR_OP, MPI.ERR_TYPE, MPI.ERR_BUFFER, MPI.ERR_COMM, MPI.ERR_COUNT, MPI.ERR_ARG, MPI.ERR_ROOT}
_IN_PLACE, _ndarray = MPI.IN_PLACE, np.ndarray


class Base(MPI.Intracomm):
    """How calls are served; `_begin`, `_persist` and `_serve` are all that the collectives know of `calls`."""

    def _serve(self, understand: Understand, given: tuple[object, ...],
               algorithm: str | None, segment_bytes: int | None) -> None:
        """Serve a blocking call; one that was served before on the same memory is not looked at again."""
        if self and self._context.unattended:
            self._context.finish()
        key = repeated(understand, given, algorithm, segment_bytes) if self else None
        known = self._context.known.get(key) if key is not None else None
        if known is None:
            run(understand(self, *given), algorithm, segment_bytes, key)
        elif known[0] is not None:
            known[0].run()
        else:
            known[1](self, *given)

    def _begin(self, understand: Understand, given: tuple[object, ...],
               algorithm: str | None, segment_bytes: int | None) -> MPI.Request:
        """Begin a non-blocking call."""
        return begin(understand(self, *given), algorithm, segment_bytes)

    def _persist(self, understand: Understand, given: tuple[object, ...], info: MPI.Info,
                 algorithm: str | None, segment_bytes: int | None) -> Plan:
        """Make the plan of a call."""
        return persist(understand(self, *given), info, algorithm, segment_bytes)

    @cached_property
    def _context(self) -> Context:
        """Looked up once per wrapper: `Dup` and its like make new ones."""
        return Context.of(self)

    # Whether a call is small, by collective: looked up once per wrapper too.

    @cached_property
    def _small_bcast(self) -> IsSmall:
        return self._small("bcast")

    @cached_property
    def _small_allgather(self) -> IsSmall:
        return self._small("allgather", share=self.Get_size() if self else 1)

    @cached_property
    def _small_allreduce(self) -> IsSmall:
        return self._small("allreduce")

    @cached_property
    def _small_reduce_scatter(self) -> IsSmall:
        return self._small("reduce_scatter", share=self.Get_size() if self else 1)

    def _small(self, collective: str, share: int = 0) -> IsSmall:
        if not self:
            return lambda vector, other: False
        return small_calls(select.native_below(collective, self._context.topology), share, self._context.unattended)


def small_calls(limit: float, share: int, unattended: list[Any]) -> IsSmall:
    """A function is_small(vector, other): whether a call goes to MPI without being looked at.

    limit: bytes from which on it is looked at. vector: the argument that is as large as the collective's vector. other:
    the other buffer, `share` times as small; 0: MPI itself compares them. Two arrays that own their memory cannot overlap.
    unattended: while anything is in it, no call goes to MPI at once. Every test costs a tenth of the call.
    """

    def is_small(vector: Any, other: Any) -> bool:
        return (
            vector.__class__ is _ndarray
            and vector.nbytes < limit
            and vector.itemsize > 2
            and (
                other is _IN_PLACE
                or other.__class__ is _ndarray
                and vector.base is None
                and other.base is None
                and other is not vector
                and (not share or other.nbytes * share == vector.nbytes)
            )
            and not unattended
        )

    return is_small


def raise_unless_refused(error: Exception) -> None:
    """Raise it again, unless the arguments were refused before anything was sent: we serve the call or say why not."""
    if isinstance(error, MPI.Exception) and error.Get_error_class() not in _REFUSED:
        raise error
