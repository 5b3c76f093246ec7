"""The benchmark on devices, over the stand-in: every candidate's results are right, and what cannot serve is left out."""

import json
import os

import numpy as np
import pytest

from benchmarks import gpu
from mpicoll.bench import Candidate, compare
from mpicoll.gpu.device import optional_cupy
from mpicoll.errors import ArgumentError
from tests.support.fakes import fakearithmetic, fakecupy
from tests.support.cases import RANK

pytestmark = [pytest.mark.mpi, pytest.mark.thorough]


@pytest.fixture
def xp(monkeypatch):
    """The stand-in, with arithmetic, as the device of the benchmark."""
    module = fakearithmetic.install(monkeypatch)
    monkeypatch.setattr(gpu, "device_module", lambda *_: module)
    monkeypatch.setattr(gpu, "COPIES", (4 << 10,))
    yield module
    fakecupy.cuda.Device(0).use()
    optional_cupy.cache_clear()


def measured(directory, *options):
    gpu.main(["--sizes", "1K:4K", "--min-time", "0.01", "--json", str(directory / "gpu.json"), *options])
    return json.loads((directory / "gpu.json").read_text()) if RANK == 0 else None


def test_every_candidate(directory, xp, monkeypatch):
    monkeypatch.setattr(gpu, "gpu_mode", lambda: "direct")
    monkeypatch.setattr(fakecupy, "aware", True)
    monkeypatch.setenv("MPICOLL_GPU", "auto")
    document = measured(directory)
    assert os.environ["MPICOLL_GPU"] == "auto"
    if document:
        rows = document["results"]
        assert {row["name"] for row in rows} >= {"staged", "direct", "by hand", "host"}
        assert {(row["dtype"], row["bytes"]) for row in rows} == {(dtype, 4**power) for dtype in gpu.DTYPES for power in (5, 6)}
        assert not any(row["wrong"] for row in rows) and all(row["repeats"] >= 5 for row in rows)
        assert [set(row) for row in document["limits"]] == [{"bytes", "down", "up", "both", "within"}]
        assert document["environment"]["devices"][0]["name"] == "a stand-in"


def test_what_cannot_serve_is_left_out(directory, xp, monkeypatch):
    """And said; other errors are not taken for that."""

    class Ours(gpu.Ours):
        def __call__(self):
            if self.algorithm == "nccl":
                raise ArgumentError("two ranks on one GPU")
            super().__call__()

    monkeypatch.setattr(gpu, "Ours", Ours)
    document = measured(directory)
    if document:
        assert {row["name"] for row in document["results"]} == {"staged", "by hand", "host"}
        assert document["left_out"]["nccl"] == "two ranks on one GPU" and "direct" in document["left_out"]


def test_a_trial_without_a_device(directory):
    document = measured(directory, "--device", "cpu")
    if document:
        assert document["limits"] == [] and not any(row["wrong"] for row in document["results"])


def test_compressed_results_on_a_device_are_compared_with_their_bound(comm, xp):
    candidates = [Candidate("native"), Candidate("pairwise", compression="int8")]
    rows = compare(comm, "allreduce", candidates, 40_000, np.dtype("f4"), repeats=1, module=xp)
    assert [row["wrong"] for row in rows] == [0, 0] and rows[1]["of_bound"] <= 1
    assert rows[1]["quantisations"] == (2 if comm.size > 1 else 0)
