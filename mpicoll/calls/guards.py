"""Buffers of calls in flight, checked for writes by the user (MPICOLL_CHECK=always)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from mpi4py import MPI

from .. import errors
from ..execute import LEFT_OVER, Context, LowerCase, Operation
from ..support.callsite import call_site
from .call import Call
from .request import Request, Submit
from .results import digest_of


class Guard:
    """Digests of a call's buffers: of the input when it begins, of the result when it ends."""

    def __init__(self, call: Call, site: str) -> None:
        #: the call, for a person
        self.text = call.form
        if call.nbytes is not None:
            self.text = f"{call.form} of {call.nbytes} bytes"
        self.site = site
        self.rank = call.rank
        send = None if call.shared else call.send
        recv = call.recv
        if call.fixed is not None or any(operand.rows is not None for operand in call.operands):
            send = None
            recv = None
        if call.is_source:
            send = recv
            recv = None
        self._send = send
        self._recv = recv
        self._digest_sent = None if send is None else digest_of(send)
        #: None before the end of the call
        self._digest_received: int | None = None

    def at_end(self) -> Iterator[object]:
        """The last step of the call."""
        if self._recv is not None:
            self._digest_received = digest_of(self._recv)
        yield from ()

    def check(self) -> None:
        """Raise BufferError where a buffer has changed since."""
        if self._send is not None and digest_of(self._send) != self._digest_sent:
            self._raise("send")
        if self._recv is None or self._digest_received is None:
            return
        if digest_of(self._recv) != self._digest_received:
            self._raise("receive")

    def _raise(self, side: str) -> None:
        raise errors.BufferError(
            f"rank {self.rank}: the {side} buffer of {self.text}, begun at {self.site}, was "
            "written to before the call was waited for: its result may be wrong on all ranks. "
            "Write to it after Wait, or give the call a copy"
        )


def guarded(submit: Submit, call: Call) -> Submit:
    """A `Submit` that guards the buffers, and lists a request that is never waited for at exit."""
    site = call_site()

    def submit_guarded(context: Context, steps: Iterator[object], *details: Any) -> object:
        guard = Guard(call, site)
        request = submit(context, chain(steps, guard.at_end()), *details)
        if isinstance(request, Request):
            request.task.guard = guard
            LEFT_OVER[request.task] = f"{guard.text}, begun at {site} and never waited for"
        return request

    return submit_guarded


class GuardedPlan(LowerCase):
    """A plan that guards its buffers from Start to Wait, and is listed at exit if never freed."""

    def __init__(self, plan: Operation | MPI.Prequest, call: Call) -> None:
        self.plan = plan
        self._call = call
        self._guard: Guard | None = None
        LEFT_OVER[self] = f"{call.text}, made at {call_site()} and never freed"

    def Start(self) -> None:
        """As the plan."""
        guard = Guard(self._call, call_site())  # before others learn of it, and write results
        self.plan.Start()
        self._guard = guard

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """As the plan; raises BufferError where the user wrote to its input since Start."""
        done = bool(self.plan.Wait(status))
        self._check()
        return done

    def Test(self, status: MPI.Status | None = None) -> bool:
        """As the plan; raises BufferError where it is done and its input changed since Start."""
        done = bool(self.plan.Test(status))
        if done:
            self._check()
        return done

    def Free(self) -> None:
        """As the plan."""
        self.plan.Free()
        LEFT_OVER.pop(self, None)

    def _check(self) -> None:
        guard = self._guard
        self._guard = None
        if guard is not None:
            guard.check()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)
