"""Non-blocking collectives: a flight that MPI sees as a generalized request."""

from mpi4py import MPI

from ..algorithms import NATIVE
from ..execute import PROGRESS, LowerCase, NativeWork, Wire, native_method
from ..select import probe


class Request(LowerCase, MPI.Grequest):
    """A collective in flight: Wait, Test, wait, test, and MPI.Request.Waitall, Waitany, Testall with MPI's own requests.

    The receive buffer is written before the request is complete. An error on the way is raised by Wait and Test; MPI's own
    Waitall says that a request failed, and prints the reason.
    """

    def __new__(cls, wire, steps, around=None):
        def query(status):
            status.Set_elements(MPI.BYTE, 0)
            status.Set_cancelled(False)
            new.flight.settle()

        handle = MPI.Grequest.Start(query)
        new = super().__new__(cls, handle)
        new.flight = wire.launch(steps, handle.Complete, around)
        return new

    def Wait(self, status=None):
        """Run to the end; raises what went wrong on the way."""
        try:
            PROGRESS.wait(self.flight)
        finally:
            self._retire(super().Wait, status)
        return True

    def Test(self, status=None):
        """Make progress without blocking; True when done. Raises what went wrong on the way."""
        try:
            done = PROGRESS.test(self.flight)
        except BaseException:
            self._retire(super().Test, status)
            raise
        return done and super().Test(status)

    def _retire(self, complete, status):
        """Have MPI forget the request."""
        if self.flight.error is None:
            complete(status)
        elif self != MPI.REQUEST_NULL:
            self.Free()


def begin(call, algorithm, segment_bytes):
    """Begin a `Call`; returns its request, MPI's own where MPI serves it without help. Local."""
    call.nonblocking = True
    name, segment_bytes, _ = call.choose(algorithm, segment_bytes, probe.known)
    wire = Wire.of(call.comm)
    if name != NATIVE:
        wire.begin_connecting(call.comm)
        return Request(wire, _scheduled(call, wire, name, segment_bytes, wire.next_tag(), wire.next_tag()), call.around())
    start = native_method(call.comm, "I" + call.method.lower())
    if not PROGRESS.threaded:  # nobody could write back what was packed
        return start(*call.arguments)
    work = NativeWork(call)
    for load in work.loads:
        load()
    request = start(*work.arguments)
    return Request(wire, _native(work, request), call.around()) if work.loads or work.stores else request


def _scheduled(call, wire, name, segment_bytes, tag, tag_of_counts):
    """A schedule as a flight: it also waits for the communicator's private duplicate and, where needed, for the counts."""
    yield from wire.connected()
    yield from call.sharing_counts(name, tag_of_counts)
    plan = call.plan(name, segment_bytes, tag)
    yield from plan.run_in_flight()
    plan.Free()


def _native(work, request):
    """MPI's own call on packed buffers as a flight: written back at its end."""
    while not request.Test():
        yield request
    for store in work.stores:
        store()
    for release in work.release:
        release()
