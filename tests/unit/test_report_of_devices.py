"""The table of measurements on devices: made where there are results, and none claimed where there are none."""

import json

from benchmarks.report.devices import table

FACTS = {"mpi": "MPICH 5.0.2", "size": 2, "machine": "a processor", "date": "2026-01-02T03:04:05", "cupy": "14.0.0",
         "cuda_driver": 13000, "devices": [{"rank": rank, "host": "n", "device": 0, "name": "NVIDIA X"} for rank in (0, 1)]}


def row(name, nbytes, microseconds, dtype="float32"):
    return {"dtype": dtype, "bytes": nbytes, "name": name, "median_us": microseconds, "wrong": 0}


def test_no_results(tmp_path):
    assert table(tmp_path).startswith("Not measured yet")


def test_results(tmp_path):
    rows = [row("staged", 4096, 50.0), row("by hand", 4096, 100.0),
            row("host", 4096, 40.0), row("by hand", 4096, 9.0, "float16")]  # fmt: skip
    limits = [{"bytes": 1 << 20, "down": 24.5, "up": 25.0, "both": 20.0, "within": 1200.0}]
    document = {"environment": FACTS, "limits": limits, "results": rows, "left_out": {"nccl": "two ranks on one GPU"}}
    (tmp_path / "gpu-mpich-2.json").write_text(json.dumps(document))
    text = table(tmp_path)
    assert "2 ranks on 1 x NVIDIA X" in text and "24.5 down, 25 up, 20 each way at once, 1200 on the device" in text
    assert "| float32 | by hand, µs | staged, x by hand | host, x by hand |" in text
    assert "| 4K | 100 | 2.00 | 2.50 |" in text and "No nccl: two ranks on one GPU." in text
