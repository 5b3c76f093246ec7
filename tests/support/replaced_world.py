"""Run mpi4py's own unit tests with its predefined communicators replaced by mpicoll's.

    mpiexec -n 3 python -m tests.support.replaced_world DIRECTORY MODULE [MODULE …]
"""

import importlib
import sys
import unittest

import numpy
from mpi4py import MPI

import mpicoll
from mpicoll.gpu import gpu_mode
from mpicoll.support.settings import STAGED

# it pickles the predefined communicators by their names in mpi4py.MPI, which now are other objects
NOT_APPLICABLE = ("testPickle",)
#: calls that are MPI's own, messages from rank to rank among them: on device memory that MPI does not take they crash
OF_MPI = ("testScan", "testExscan", "testReduceLocal", "CuPy", "DLPackGPU")


def _tests(suite, left_out):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test, left_out)
        elif not any(name in test.id() for name in left_out):
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


def _fill_as_numpy_1_did(arrayimpl):
    """They fill CuPy's unsigned arrays with -1, which NumPy 2 refuses. Those of NumPy they convert first."""
    original = arrayimpl.GPUArrayCuPy.__init__

    def made(self, arg, typecode, *rest, **options):
        value = numpy.array(arg).astype(typecode).item() if isinstance(arg, int) else arg
        original(self, value, typecode, *rest, **options)

    arrayimpl.GPUArrayCuPy.__init__ = made


def main(directory, *modules):
    MPI.COMM_WORLD, MPI.COMM_SELF = map(mpicoll.Communicator, (MPI.COMM_WORLD, MPI.COMM_SELF))
    sys.path.insert(0, directory)
    arrayimpl = importlib.import_module("arrayimpl")  # of that directory
    left_out = NOT_APPLICABLE
    if arrayimpl.cupy is not None:
        _fill_as_numpy_1_did(arrayimpl)
        left_out += OF_MPI if gpu_mode() == STAGED else ()
    suite = unittest.TestSuite(_tests(unittest.defaultTestLoader.loadTestsFromNames(modules), left_out))
    unittest.TextTestRunner(verbosity=0, resultclass=_Result).run(suite)


if __name__ == "__main__":
    main(*sys.argv[1:])
