"""What must hold of streams, whether the device is real or not: a call comes after what is under way in the current one."""

from contextlib import nullcontext
from threading import Thread

import numpy as np
import pytest
from mpi4py import MPI

from tests.support.cases import RANK, SIZE, same

COUNT = 1 << 12
TOTAL = np.full(COUNT, SIZE * (SIZE + 1) / 2, "f4")


def persistent(comm, *given, **options):
    plan = comm.Allreduce_init(*given, **options)
    plan.Start()
    plan.Wait()
    plan.Free()


FORMS = {
    "blocking": lambda comm, *given: comm.Allreduce(*given, algorithm="ring"),
    "segmented": lambda comm, *given: comm.Allreduce(*given, algorithm="ring", segment_bytes=1 << 10),
    "native": lambda comm, *given: comm.Allreduce(*given, algorithm="native"),
    "non-blocking": lambda comm, *given: comm.Iallreduce(*given, algorithm="ring").Wait(),
    "persistent": lambda comm, *given: persistent(comm, *given, algorithm="ring"),
}
STREAMS = {
    "its first stream": lambda xp: nullcontext(),
    "blocking stream": lambda xp: xp.cuda.Stream(),
    "non-blocking stream": lambda xp: xp.cuda.Stream(non_blocking=True),
}


def late(xp, slow, value):
    """An array that has its values only when the current stream comes to it."""
    array, one = xp.array(np.zeros(COUNT, "f4")), xp.array(np.full(COUNT, value, "f4"))
    slow()
    xp.add(array, one, out=array)
    return array


class DeviceStreams:
    """Checks over an array module `xp`. slow: makes the current stream late."""

    @pytest.mark.parametrize("kind", STREAMS)
    @pytest.mark.parametrize("form", FORMS)
    def test_input_that_comes_late(self, xp, mode, comm, slow, form, kind):
        with STREAMS[kind](xp):
            data = late(xp, slow, RANK + 1)
            FORMS[form](comm, MPI.IN_PLACE, data)
        with xp.cuda.Stream(non_blocking=True):  # which waits for nothing
            same(data, TOTAL)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_result_is_written_after_its_last_reader(self, xp, mode, comm, slow, form):
        """Work in the current stream may still read what a call is about to overwrite."""
        with xp.cuda.Stream(non_blocking=True):
            one, total = xp.array(np.full(COUNT, RANK + 1, "f4")), xp.array(np.full(COUNT, 7, "f4"))
            before = xp.array(np.zeros(COUNT, "f4"))
            slow()
            xp.add(total, before, out=before)
            FORMS[form](comm, one, total)
            same(before, np.full(COUNT, 7, "f4"))
            same(total, TOTAL)

    @pytest.mark.parametrize("form", FORMS)
    def test_what_comes_after_a_call_sees_its_result(self, xp, mode, comm, slow, form):
        with xp.cuda.Stream(non_blocking=True):
            data = late(xp, slow, RANK + 1)
            FORMS[form](comm, MPI.IN_PLACE, data)
            xp.add(data, data, out=data)
            same(data, 2 * TOTAL)

    def test_a_plan_that_is_started_again(self, xp, mode, comm, slow):
        with xp.cuda.Stream(non_blocking=True):
            data, values = xp.array(np.ones(COUNT, "f4")), [xp.array(np.full(COUNT, v, "f4")) for v in (0, 1, 5)]
            plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="ring")
            for number in (1, 5):
                slow()
                xp.add(values[0], values[1 if number == 1 else 2], out=data)
                plan.Start()
                plan.Wait()
                same(data, np.full(COUNT, number * SIZE, "f4"))
            plan.Free()

    def test_a_plan_that_is_waited_for_in_another_stream(self, xp, mode, comm, slow):
        with xp.cuda.Stream(non_blocking=True):
            data = late(xp, slow, RANK + 1)
            plan = comm.Allreduce_init(MPI.IN_PLACE, data, algorithm="ring")
            plan.Start()
        with xp.cuda.Stream(non_blocking=True):
            plan.Wait()
            same(data, TOTAL)
        plan.Free()

    def test_calls_in_flight_in_several_streams(self, xp, mode, comm, slow):
        streams, arrays, requests = [xp.cuda.Stream(non_blocking=True) for _ in range(3)], [], []
        for stream in streams:
            with stream:
                arrays.append(late(xp, slow, RANK + 1))
                requests.append(comm.Iallreduce(MPI.IN_PLACE, arrays[-1], algorithm="ring"))
        MPI.Request.Waitall(requests)
        for array in arrays:
            same(array, TOTAL)

    @pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs threads that call MPI")
    def test_the_stream_of_a_thread_is_its_own(self, xp, mode, comm, slow):
        number, found = xp.cuda.runtime.getDevice(), []

        def work():
            xp.cuda.Device(number).use()
            with xp.cuda.Stream(non_blocking=True):
                data = late(xp, slow, RANK + 1)
                comm.Allreduce(MPI.IN_PLACE, data, algorithm="ring")
                found.append(data.get())

        thread = Thread(target=work)
        thread.start()
        thread.join()
        same(found[0], TOTAL)
