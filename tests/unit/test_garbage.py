"""What may not be interrupted by finalizers."""

import gc
import subprocess
import sys
import threading

import pytest

from mpicoll.support.garbage import frames_of_threads, without_collection
from tests.support.launching import environment

#: it waited for itself for ever at the first collection in the middle of it
PROGRAM = """
import gc, threading
from mpicoll.support.garbage import frames_of_threads

class Cycle:
    def __init__(self):
        self.itself, self.local = self, threading.local()
        self.local.value = 1

over = threading.Event()
for _ in range(30):
    threading.Thread(target=over.wait, daemon=True).start()
gc.set_threshold(1)
for _ in range(300):
    Cycle()
    frames_of_threads()
print("done")
"""


def test_frames_while_garbage_is_made():
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment(), capture_output=True, text=True, timeout=300)
    assert done.stdout == "done\n", done.stderr


#: modules lose their names one by one, the latest first; what NumPy's module holds is deleted then
ENDS = """
import codecs, sys
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.launch import _Exit

comm = mpicoll.Communicator(MPI.COMM_WORLD)
x = np.ones(3)
pair = MPI.DOUBLE.Create_vector(2, 1, 2)
np.kept = [comm, comm.empty(5), mpicoll.Communicator(MPI.COMM_WORLD), _Exit(1), pair.Commit()]
for algorithm in "native", "ring":
    np.kept.append(comm.Iallreduce(MPI.IN_PLACE, x, algorithm=algorithm))
    np.kept[-1].Wait()
    np.kept.append(comm.Allreduce_init(MPI.IN_PLACE, x, algorithm=algorithm))
sides = [[np.ones(4), [1], [0], [pair]] for _ in range(2)]
np.kept.append(comm.Alltoallw_init(*sides, algorithm="direct"))
codecs.register(lambda name, modules=dict(sys.modules): None)  # keeps the modules
"""


def test_what_is_deleted_when_the_interpreter_ends():
    done = subprocess.run([sys.executable, "-c", ENDS], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_this_thread_is_among_them():
    assert threading.get_ident() in frames_of_threads()


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_goes_on_as_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    assert without_collection(without_collection, gc.isenabled) is False
    assert gc.isenabled() == enabled
    (gc.enable if before else gc.disable)()
