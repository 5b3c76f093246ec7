"""Run mpi4py's own unit tests with its predefined communicators replaced by mpicoll's.

    mpiexec -n 3 python -m tests.support.replaced_world DIRECTORY MODULE [MODULE …]
"""

import sys
import unittest

from mpi4py import MPI

import mpicoll
from mpicoll.buffers import gpu_mode
from mpicoll.support.settings import STAGED

# it pickles the predefined communicators by their names in mpi4py.MPI, which now are other objects
NOT_APPLICABLE = ["testPickle"]
#: with CuPy: calls that are MPI's own, which crash on device memory that MPI does not take
OF_MPI = ["testScan", "testExscan", "testAlltoallw", "testReduceLocal", "test_msgspec"]


def _tests(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        elif not any(name in test.id() for name in NOT_APPLICABLE):
            yield test


class _Result(unittest.TextTestResult):
    """A failure on one rank ends the job: the others would wait for it."""

    def _end(self, test, error):
        print(f"rank {MPI.COMM_WORLD.Get_rank()}: {test}\n{self._exc_info_to_string(error, test)}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)

    def addError(self, test, err):
        self._end(test, err)

    def addFailure(self, test, err):
        self._end(test, err)


def _suit_cupy():
    """They fill CuPy's unsigned arrays with -1, which NumPy 2 refuses. Those of NumPy they convert first."""
    import arrayimpl
    import numpy

    if arrayimpl.cupy is None:
        return
    if gpu_mode() == STAGED:
        NOT_APPLICABLE.extend(OF_MPI)
    original = arrayimpl.GPUArrayCuPy.__init__

    def made(self, arg, typecode, *rest, **options):
        value = numpy.array(arg).astype(typecode).item() if isinstance(arg, int) else arg
        original(self, value, typecode, *rest, **options)

    arrayimpl.GPUArrayCuPy.__init__ = made


def main(directory, *modules):
    MPI.COMM_WORLD, MPI.COMM_SELF = map(mpicoll.Communicator, (MPI.COMM_WORLD, MPI.COMM_SELF))
    sys.path.insert(0, directory)
    _suit_cupy()
    suite = unittest.TestSuite(_tests(unittest.defaultTestLoader.loadTestsFromNames(modules)))
    unittest.TextTestRunner(verbosity=0, resultclass=_Result).run(suite)


if __name__ == "__main__":
    main(*sys.argv[1:])
