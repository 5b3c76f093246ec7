"""What schedules need of one communicator, shared by all wrappers of its handle and freed with it."""

import atexit
import weakref
from collections import defaultdict

import numpy as np
from mpi4py import MPI

from .progress import PROGRESS, Lane
from .topology import discover, inherited

#: calls on the same memory that are recognised, per communicator, and the scratch and requests that their plans may hold
KNOWN_CALLS, KEPT_BYTES, KEPT_REQUESTS = 128, 512 << 20, 1 << 16
_PAGE = 4096


class Wire:
    """What schedules need of one communicator: nodes, a private duplicate, tags, scratch, cached plans, counters."""

    _keyval = None
    _alive = weakref.WeakSet()

    def __init__(self, topology, measured=None):
        self.comm = None
        self.topology = topology
        self.measured = {} if measured is None else measured  # what `probe` found, shared by duplicates
        self.messages = self.nbytes = 0
        self.flown = [0, 0]  # the same of flights, which another thread counts
        self.known = {}  # key of a repeated call: (its plan or None, MPI's own method or None)
        self.lane, self.unattended = Lane(), []
        self._connecting = None
        self.pool = defaultdict(list)
        self.plans = weakref.WeakSet()
        self._tag = 0
        self._alive.add(self)

    def connect(self, comm):
        """Make the private duplicate at the first scheduled collective; that call is collective."""
        if self._connecting is not None:
            PROGRESS.wait(PROGRESS.launch(self.connected(), Lane()))
        elif self.comm is None:
            self.comm = MPI.Intracomm(MPI.Intracomm.Dup(comm))  # plain: `Dup` gives the class of `comm`

    def begin_connecting(self, comm):
        """The same without waiting; `connected` then waits."""
        if self.comm is None and self._connecting is None:
            self._connecting = MPI.Intracomm.Idup(comm)

    def connected(self):
        """A generator that ends when there is a private duplicate."""
        while self._connecting is not None:
            comm, request = self._connecting
            if request.Test():
                self.comm, self._connecting = MPI.Intracomm(comm), None
            else:
                yield request

    @classmethod
    def of(cls, comm):
        """The wire of this communicator handle; all wrappers of a handle share it. Collective the first time.

        Communicators made from one that has a wire (`derive`, `duplicate`) know their nodes without asking.
        """
        return cls._get(comm) or cls._set(comm, discover(comm))

    @classmethod
    def derive(cls, comm, parent):
        """Give a communicator of some ranks of `parent` its wire. Local."""
        if comm != MPI.COMM_NULL and cls._get(comm) is None:
            cls._set(comm, inherited(comm, parent, cls.of(parent).topology))
        return comm

    @classmethod
    def duplicate(cls, comm, parent):
        """Give a duplicate of `parent` its wire, with all that was measured. Local."""
        wire = cls.of(parent)
        cls._set(comm, wire.topology, wire.measured)
        return comm

    @classmethod
    def _get(cls, comm):
        if cls._keyval is None:
            # not copied by MPI: Open MPI 5.0's Comm_create_group copies attributes too, to a group of other ranks
            cls._keyval = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, wire: wire.close())
            cls._release_before_finalize()
        return comm.Get_attr(cls._keyval)

    @classmethod
    def _set(cls, comm, topology, measured=None):
        wire = cls(topology, measured)
        comm.Set_attr(cls._keyval, wire)
        return wire

    @classmethod
    def _release_before_finalize(cls):
        """Have the thread ended and the requests freed in time: MPICH reports each request that was not freed.

        MPI_Finalize first deletes the attributes of COMM_SELF; when mpi4py calls it at exit, Python is gone already.
        """

        def deleted(comm, key, handle):
            if comm.handle == handle:  # not a group made of it, to which Open MPI copied the attribute
                cls._release()

        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=deleted), MPI.COMM_SELF.handle)
        atexit.register(cls._release)

    @classmethod
    def _release(cls):
        PROGRESS.stop()
        for wire in list(cls._alive):
            wire.free_plans()

    def launch(self, steps, landed=None, around=None):
        """Begin a `Flight` on this communicator; `finish` sees to those that no thread advances."""
        flight = PROGRESS.launch(steps, self.lane, landed, around)
        if not PROGRESS.threaded:
            self.unattended.append(flight)
        return flight

    def finish(self):
        """Bring what no thread advances to its end before a call that blocks: other ranks may wait for what it has yet to send.

        It is under way on all ranks then, as collectives begin in the same order everywhere.
        """
        while self.unattended:
            flight = self.unattended.pop()
            if not flight.ended:
                PROGRESS.wait(flight)

    @property
    def sent(self):
        """(messages, bytes) sent in schedules so far."""
        return self.messages + self.flown[0], self.nbytes + self.flown[1]

    def settle(self):
        """Bring what is in flight to its end; not from within MPI's Comm_free, where MPICH lets no other thread in."""
        for flight in self.lane.flights:
            PROGRESS.wait(flight)

    def free_plans(self):
        """Free the requests of all plans, cached or not."""
        for plan in list(self.plans):
            if not plan.in_flight:
                plan.Free()
        self.known.clear()

    def close(self):
        """The communicator is being freed; `settle` came before."""
        self.free_plans()
        self.pool.clear()
        self._alive.discard(self)
        if self.comm is not None:
            self.comm.Free()

    def next_tag(self):
        """A tag for one persistent plan, reserved in program order, so the same on all ranks; 0 is for blocking calls."""
        self._tag = self._tag % 32000 + 1
        return self._tag

    def take(self, nbytes, module=np):
        """A byte vector of at least `nbytes` from the pool."""
        # a few sizes per power of two: little is wasted, and calls of many sizes do not fill the pool with odd ones
        step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
        size = -(-nbytes // step) * step
        pool = self.pool[module.__name__, size]
        return pool.pop() if pool else module.empty(size, np.uint8)

    def give(self, scratch, module=np):
        """Return a byte vector to the pool."""
        self.pool[module.__name__, scratch.size].append(scratch)

    def keep(self, key, plan, native=None):
        """Let later calls with this key be served by a plan or MPI's method; the oldest makes room, its plan is freed."""
        self.known[key] = plan, native
        while len(self.known) > 1 and self._too_much():
            freed = self.known.pop(next(iter(self.known)))[0]
            if freed is not None:
                freed.Free()

    def _too_much(self):
        plans = [plan for plan, _ in self.known.values() if plan is not None]
        return (len(self.known) > KNOWN_CALLS or sum(plan.scratch for plan in plans) > KEPT_BYTES
                or sum(plan.requests for plan in plans) > KEPT_REQUESTS)  # fmt: skip
