"""What must hold for arrays in device memory, whether the device is real or not."""

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll import BufferError
from tests.support.cases import (
    EVERY,
    METHODS,
    RANK,
    REDUCTIONS,
    SEGMENT,
    SIZE,
    Case,
    expected,
    forms_of,
    roots_of,
    same,
    words,
)

COUNT = 2 * SIZE + 1


class DeviceArrays:
    """Checks over an array module `xp`; `check(result, wanted)` is how results are compared."""

    def check(self, result, wanted, written=True):
        same(result, wanted)

    @pytest.mark.parametrize("method", METHODS)
    def test_every_collective(self, xp, mode, comm, method):
        for word in (None, words(method)[0]):
            self.check_forms(xp, comm, method, word)

    @pytest.mark.parametrize("mode", ["direct"], indirect=True)
    @pytest.mark.parametrize(("method", "word"), EVERY)
    def test_every_algorithm(self, xp, mode, comm, method, word):
        self.check_forms(xp, comm, method, word)

    def check_forms(self, xp, comm, method, word):
        for form in forms_of(method):
            root = roots_of(method)[-1 if form == "apart" else 0]
            result = Case(method, COUNT, root, form, array=xp.array).call(comm, algorithm=word, segment_bytes=SEGMENT)
            stays = method.startswith("Scatter") and form != "apart"  # the root's own block
            self.check(result, expected(method, COUNT, root), written=not stays)

    @pytest.mark.parametrize("method", METHODS)
    def test_plans(self, xp, mode, comm, method):
        for word in (None, words(method)[0], words(method)[-1]):
            case = Case(method, COUNT, array=xp.array)
            plan = case.init(comm, algorithm=word)
            for _ in range(2):
                plan.Start()
                plan.Wait()
                self.check(case.result, expected(method, COUNT))
            plan.Free()

    @pytest.mark.parametrize("method", METHODS)
    def test_non_blocking(self, xp, mode, comm, method):
        for word in (None, words(method)[0], words(method)[-1]):
            case = Case(method, COUNT, array=xp.array)
            MPI.Request.Waitall([case.begin(comm, algorithm=word)])
            self.check(case.result, expected(method, COUNT))

    @pytest.mark.parametrize("word", [None, *words("Allreduce")])
    def test_input_that_is_still_being_computed(self, xp, mode, comm, word):
        """A call is ordered after the work already in the stream, and its result is there when it returns."""
        one, two, total = xp.array(np.arange(9.0)), xp.array(np.full(9, float(RANK))), xp.empty(9)
        for _ in range(3):
            xp.add(one, two, out=total)
            comm.Allreduce(MPI.IN_PLACE, total, algorithm=word)
            self.check(total, SIZE * np.arange(9.0) + sum(range(SIZE)))

    @pytest.mark.parametrize("word", [None, "ring", "native"])
    @pytest.mark.parametrize("strides", ["second", "transposed", "columns", "backwards"])
    def test_strides(self, xp, mode, comm, strides, word):
        view = {"second": lambda a: a[::2], "transposed": lambda a: a.T, "columns": lambda a: a[:, 1:3],
                "backwards": lambda a: a[::-1, ::-1]}[strides]  # fmt: skip
        host = np.arange(24.0).reshape(6, 4)
        whole, target = xp.array(host), xp.array(np.zeros_like(host))
        comm.Allreduce(view(whole), view(target), algorithm=word)
        wanted = np.zeros_like(host)
        view(wanted)[...] = view(host) * SIZE
        self.check(target, wanted)
        self.check(whole, host)
        packed = xp.empty(view(host).size)
        comm.Allreduce(view(whole), packed, algorithm=word)
        self.check(packed, (view(host) * SIZE).ravel(order="K" if strides == "transposed" else "C"))
        comm.Allreduce(MPI.IN_PLACE, view(whole), algorithm=word)
        host_sum = host.copy()
        view(host_sum)[...] = view(host) * SIZE
        self.check(whole, host_sum)

    @pytest.mark.parametrize("word", [None, "ring", "native"])
    def test_a_part_that_is_described(self, xp, mode, comm, word):
        """[array, (count, displacement), type] over device memory."""
        data, wanted = xp.array(np.arange(10.0)), np.arange(10.0)
        comm.Allreduce(MPI.IN_PLACE, [data, (4, 3), MPI.DOUBLE], algorithm=word)
        wanted[3:7] *= SIZE
        self.check(data, wanted)

    @pytest.mark.parametrize("word", [None, *words("Allgatherv")])
    def test_blocks_with_gaps(self, xp, mode, comm, word):
        result, wanted = xp.array(np.full(3 * SIZE, -1.0)), np.full(3 * SIZE, -1.0)
        mine, displacements = xp.array(np.full(2, float(RANK))), list(range(0, 3 * SIZE, 3))
        comm.Allgatherv(mine, [result, ([2] * SIZE, displacements)], algorithm=word)
        for rank in range(SIZE):
            wanted[3 * rank : 3 * rank + 2] = rank
        self.check(result, wanted)

    @pytest.mark.parametrize("word", [None, "ring", "native"])
    def test_two_parts_of_one_array_at_a_time(self, xp, mode, comm, word):
        """Each call brings back what it was told of, not what another one is changing."""
        data, wanted = xp.array(np.arange(8.0)), np.arange(8.0)
        parts = [comm.Iallreduce(MPI.IN_PLACE, [data, (4, at), MPI.DOUBLE], algorithm=word) for at in (0, 4)]
        MPI.Request.Waitall(parts)
        self.check(data, wanted * SIZE)

    @pytest.mark.parametrize("word", [None, "native", *words("Bcast")[:1]])
    def test_two_columns_of_one_array_at_a_time(self, xp, mode, comm, word):
        """The same where a derived datatype describes them."""
        data = xp.array(np.full((4, 3), float(RANK)))
        column = MPI.DOUBLE.Create_vector(4, 1, 3).Create_resized(0, 8).Commit()
        moved = [comm.Ibcast([data, (1, at), column], root, algorithm=word) for at, root in ((0, 0), (2, SIZE - 1))]
        column.Free()
        MPI.Request.Waitall(moved)
        wanted = np.full((4, 3), float(RANK))
        wanted[:, 0], wanted[:, 2] = 0, SIZE - 1
        self.check(data, wanted)

    def test_a_type_that_reaches_beyond_the_array(self, xp, mode, comm):
        for place in (-8, 24):
            outside = MPI.DOUBLE.Create_hindexed([1], [place]).Commit()
            with pytest.raises(BufferError, match="of an array of 24 bytes"):
                comm.Bcast([xp.array(np.zeros(3)), 1, outside])
            outside.Free()

    @pytest.mark.parametrize("method", REDUCTIONS)
    @pytest.mark.parametrize("name", ["PROD", "MAX", "BXOR"])
    def test_operations(self, xp, mode, comm, method, name):
        for word in (None, words(method)[-1]):
            result = Case(method, COUNT, op=getattr(MPI, name), array=xp.array).call(comm, algorithm=word)
            self.check(result, expected(method, COUNT, op=name))

    @pytest.mark.parametrize("word", [None, "recursive_doubling", "ring"])
    def test_half_precision(self, xp, mode, comm, word):
        data = xp.array(np.arange(9), dtype="f2")
        comm.Allreduce(MPI.IN_PLACE, data, algorithm=word)
        self.check(data, np.arange(9).astype("f2") * np.float16(SIZE))
