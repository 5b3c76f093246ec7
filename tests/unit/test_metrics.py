"""What metrics write for other tools, read as these tools read it."""

import json
import struct
import time

import pytest
from mpi4py import MPI

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.support import optional
from mpicoll.train.monitor import metrics_log

STEPS = [{"step": 1, "epoch": 1, "loss": 2.5, "hidden": None}, {"step": 2, "epoch": 1, "loss": 1.25, "hidden": 0.5}]
EPOCH = {"epoch": 1, "loss": 1.875, "seconds": 3}


def logged(target):
    with metrics_log(target, MPI.COMM_SELF) as log:
        for fields in (*STEPS, EPOCH):
            log(**fields)


def test_lines(tmp_path):
    logged(tmp_path / "lines")
    assert [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()] == [*STEPS, EPOCH]


def test_tensorboard(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    logged(f"tensorboard:{tmp_path}")
    (file,) = tmp_path.iterdir()
    data, seen = file.read_bytes(), []
    while data:  # length, its checksum, an event, its checksum
        (length,) = struct.unpack_from("<Q", data)
        event = Event.FromString(data[12:][:length])
        seen += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[length + 16 :]
    assert seen == [
        ("step/loss", 1, 2.5), ("step/loss", 2, 1.25), ("step/hidden", 2, 0.5),
        ("epoch/loss", 1, 1.875), ("epoch/seconds", 1, 3),
    ]  # fmt: skip


def records_of_wandb(file):
    """Those of its file so far, which its own process writes."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, parts = file.read_bytes()[7:], b""
    while len(data) > 7:  # checksum, length, and which part of a record follows; short files are one block
        length, part = struct.unpack_from("<HB", data, 4)
        if len(data) < 7 + length:
            return
        parts, data = parts + data[7:][:length], data[7 + length :]
        if part in (1, 4):  # the whole, or the last
            yield messages.Record.FromString(parts)
            parts = b""


@pytest.mark.thorough
def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged("wandb:project")
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    while not any(record.HasField("exit") for record in records_of_wandb(file)):
        time.sleep(0.05)
    seen, projects = [], []
    for record in records_of_wandb(file):
        projects += [record.run.project] * record.HasField("run")
        fields = {".".join([item.key, *item.nested_key]).strip("."): item.value_json for item in record.history.item}
        seen += [{name: json.loads(text) for name, text in fields.items() if name[0] != "_"}] if fields else []
    assert projects == ["project"]
    assert seen == [
        {"step/loss": 2.5, "step": 1, "epoch": 1},
        {"step/loss": 1.25, "step/hidden": 0.5, "step": 2, "epoch": 1},
        {"epoch/loss": 1.875, "epoch/seconds": 3, "epoch": 1},
    ]


def test_what_cannot_be_written_or_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for target in (tmp_path, f"tensorboard:{tmp_path}/file"):
        with pytest.raises(ArgumentError, match="metrics: cannot write"):
            logged(target)
    monkeypatch.setattr(optional, "import_module", _missing)
    for kind, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        words = rf'needs {package} \(not here\); install it with: pip install "mpicoll\[{kind}\]"'
        with pytest.raises(LaunchError, match=words):
            logged(f"{kind}:{tmp_path}")


def _missing(name):
    raise ImportError("not here")
