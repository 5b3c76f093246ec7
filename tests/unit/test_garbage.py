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


def test_this_thread_is_among_them():
    assert threading.get_ident() in frames_of_threads()


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_goes_on_as_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    assert without_collection(without_collection, gc.isenabled) is False
    assert gc.isenabled() == enabled
    (gc.enable if before else gc.disable)()
