"""Jobs in surroundings that are not the usual ones: python surroundings.py SCENARIO.

Each rank that comes to its end prints "done".

tool: one that was preloaded counts all messages and all calls of MPI's own.
namespaces: each rank is process 1; a file of rank 1 has the descriptor of the heap of rank 0.
limit: a control group has less memory than the array that is asked for.
door, task, plan: rank 1 is killed, the others wait for it in such a call.
finalize: MPI is finalized while a request and a plan are under way.
many: 5,000 communicators, 500 at a time.
stopped: rank 1 is, and goes on, again and again.
edges ALGORITHM: memory is shared with those ranks alone that messages go to.
"""

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll import engine
from mpicoll.execute import Context
from mpicoll.shared_memory import HEAP, ring
from tests.support.deaths import die

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SCENARIO = sys.argv[1]


def summed(comm, x, **options):
    """An Allreduce in place, of which the result is right."""
    x[:] = comm.Get_rank()
    comm.Allreduce(MPI.IN_PLACE, x, **options)
    assert (x == sum(range(comm.Get_size()))).all(), x


def tool():
    """First calls also exchange what calls are compared by."""
    engine.require()
    comm = mpicoll.Communicator(WORLD)
    preloaded = ctypes.CDLL(None)
    x = np.ones(1000)
    for _ in range(3):
        summed(comm, x, algorithm="ring")
        summed(comm, x, algorithm="native")
    for _ in range(5):
        before, (sent, _) = preloaded.tool_messages(), comm.sent
        summed(comm, x, algorithm="ring")
        assert preloaded.tool_messages() - before == comm.sent[0] - sent == 2 * (SIZE - 1)
        before = preloaded.tool_calls()
        summed(comm, x, algorithm="native")
        assert preloaded.tool_calls() - before == 1


def namespaces():
    """All of the node go through MPI, whatever the other rank's descriptor is here."""
    empty = tempfile.TemporaryFile()
    for _ in range(100 + 100 * RANK):
        os.dup(empty.fileno())
    HEAP.descriptor()
    comm = mpicoll.Communicator(WORLD)
    for count in (10, 100_000):
        summed(comm, np.ones(count), algorithm="ring")
    assert "cannot be mapped" in Context.of(comm).topology.refusal


def limit():
    comm = mpicoll.Communicator(WORLD)
    try:
        comm.zeros(int(sys.argv[2]), "u1")
        raise AssertionError("the control group has less memory")
    except mpicoll.ArgumentError as error:
        print(error)


def killed():
    """The survivors hear of it wherever they wait, and go on."""
    comm = mpicoll.Communicator(WORLD)
    x = np.zeros(100)
    plan = comm.Allreduce_init(MPI.IN_PLACE, x, algorithm="ring")

    def call():
        if SCENARIO == "door":
            comm.Allreduce(MPI.IN_PLACE, x, algorithm="ring")
        elif SCENARIO == "task":
            comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring").Wait()
        else:
            plan.Start()
            plan.Wait()

    for _ in range(6):
        call()
    die(1)
    try:
        while True:
            call()
    except mpicoll.RankFailure:
        survivors = comm.shrink()
    for _ in range(6):
        summed(survivors, x, algorithm="ring")


def finalize():
    comm = mpicoll.Communicator(WORLD.Dup())
    x, y = np.ones(1000), np.ones(200_000)
    plan = comm.Allreduce_init(MPI.IN_PLACE, y, algorithm="ring")
    plan.Start()
    plan.Wait()
    for algorithm in ("ring", "native"):
        for _ in range(4):
            comm.Allreduce(MPI.IN_PLACE, y, algorithm=algorithm)
    if RANK == 0:  # the others make no such call
        requests.append(comm.Iallreduce(MPI.IN_PLACE, x, algorithm="ring"))
        plan.Start()
    MPI.Finalize()
    for algorithm in ("ring", "native"):  # else MPI would end the job
        assert comm._passes_allreduce(MPI.IN_PLACE, y, MPI.SUM, algorithm, None) is False


def many():
    comm = mpicoll.Communicator(WORLD)
    x = np.ones(100)
    for _ in range(10):
        made = [comm.Dup() for _ in range(500)]
        for one in made[::10]:
            summed(one, x, algorithm="ring")
        for one in made:
            one.Free()


#: how often rank 1 is stopped, and of the calls of `round_of_calls` so many each time
STOPS, ROUNDS = 40, 3


def round_of_calls(comm, arrays, root):
    for x, algorithm in zip(arrays, ("recursive_doubling", "ring", "ring")):
        summed(comm, x, algorithm=algorithm)
    x, *_ = arrays
    everyone = np.empty(SIZE)
    x[:] = RANK
    comm.Allgather(x, everyone, algorithm="ring")
    assert (everyone == np.arange(SIZE)).all()
    comm.Bcast(x, root, algorithm="binomial")
    assert (x == root).all()


def stopped():
    """It ends after so many calls, however long each takes, and all of them pass doors."""
    engine.require()
    comm = mpicoll.Communicator(WORLD)
    recorder = Context.of(comm).recorder
    arrays = [np.ones(count) for count in (1, 1000, 100_000)]
    pids = WORLD.allgather(os.getpid())
    due = threading.Semaphore(0)

    def stop():
        lengths = np.random.default_rng(1).choice([0, 1e-4, 1e-3, 5e-3], STOPS)
        for length in lengths:
            due.acquire()
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(length)
            os.kill(pids[1], signal.SIGCONT)

    sent = []
    for number in range(6 * SIZE):  # from the fourth time on calls pass
        before = recorder.messages
        round_of_calls(comm, arrays, number % SIZE)
        sent.append(recorder.messages - before)
    thread = threading.Thread(target=stop)
    if RANK == 0:
        thread.start()
    before = recorder.messages
    for number in range(STOPS * ROUNDS * SIZE):
        if number % (ROUNDS * SIZE) == 0:
            due.release()
        round_of_calls(comm, arrays, number % SIZE)
    assert recorder.messages - before == STOPS * ROUNDS * sum(sent[-SIZE:])
    if RANK == 0:
        thread.join()


def allocated():
    """Bytes of the heap that are in use."""
    free = sum(end - begin for begin, end in HEAP.ranges.free) + sum(block.nbytes for block in HEAP._returned)
    return sum(segment.nbytes for segment in HEAP.ranges.segments) - free


def edges():
    """An allreduce of 64 KiB: 64 ranks take less than 64 MiB of their node, fewer ranks their share of that."""
    algorithm = sys.argv[2]
    comm = mpicoll.Communicator(WORLD)
    links = Context.of(comm).links
    x = np.ones(16 << 10, np.float32)
    before = allocated()
    for _ in range(5):
        summed(comm, x, algorithm=algorithm)
    # of a ring the words of both neighbours, as each tells where its own may write
    steps = (SIZE - 1).bit_length()
    peers, receivers, piece = (2, 1, x.nbytes // SIZE) if algorithm == "ring" else (steps, steps, links.chunk)
    most = peers * ring._RING_BYTES + receivers * ring.SLOTS * piece
    assert len(links._out) == peers
    assert allocated() - before <= most + SIZE * ring.WORD + x.nbytes
    assert WORLD.allreduce(allocated() - before) < SIZE << 20


requests = []
SCENARIOS = {"tool": tool, "namespaces": namespaces, "limit": limit}
SCENARIOS |= {"finalize": finalize, "many": many, "stopped": stopped, "edges": edges}
SCENARIOS.get(SCENARIO, killed)()
print("done", flush=True)
