"""The trace format, and its picture."""

import json
import sys

import pytest

from benchmarks.report.steps import picture
from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.measure.timeline import document, tracks
from mpicoll.support.events import Event


def test_tracks_keep_events_apart():
    flights = [Event("communication", name, *times) for name, *times in [
        ("a", 0, 4), ("b", 1, 2), ("c", 1, 6), ("d", 2, 3), ("e", 4, 5), ("f", 4, 5),
    ]]  # fmt: skip
    assert [[name for _, name, *_ in track] for track in tracks(flights)] == [["a", "e"], ["b", "d", "f"], ["c"]]
    assert tracks([]) == [[]]


EVENTS = [Event(*event) for event in [
    ("compute", "inner", 7.000001, 7.000002), ("compute", "outer", 7.000001, 7.0000034), ("wait", "w", 7.0000034, 8),
    ("step", "step 0", 7, 8), ("communication", "x", 7, 7.5), ("communication", "y", 7.25, 8.5),
]]  # fmt: skip


def test_document():
    result = document([("here", EVENTS), ("there", [Event("step", "step 0", 6.999999, 7.5)])])
    assert list(result) == ["traceEvents", "displayTimeUnit"] and json.loads(json.dumps(result)) == result
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in result["traceEvents"] if e["name"] == "thread_name"}
    processes = [e["args"]["name"] for e in result["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["rank 0 on here", "rank 1 on there"]
    spans = [(names[e["pid"], e["tid"]], e["pid"], e["name"], e["ts"], e["dur"]) for e in result["traceEvents"]
             if e["ph"] == "X"]  # fmt: skip
    assert spans == [
        ("step", 0, "step 0", 1, 1e6), ("compute", 0, "outer", 2, 2.4), ("compute", 0, "inner", 2, 1),
        ("wait", 0, "w", 4.4, 999996.6), ("communication", 0, "x", 1, 5e5), ("communication 2", 0, "y", 250001, 1250000),
        ("step", 1, "step 0", 0, 500001),
    ]  # fmt: skip


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    trace, output = tmp_path / "trace.json", tmp_path / "picture.svg"
    trace.write_text(json.dumps(document([("here", EVENTS), ("there", EVENTS)])))
    picture(output, [("without", trace), ("with", trace)], step=0)
    text = output.read_text()
    assert text.count("<!-- rank 1 -->") == 2 and text.count("<!-- without -->") == 1
    with pytest.raises(ArgumentError, match="^step: expected the number of a step in .*trace.json, got 5"):
        picture(output, [("without", trace)], step=5)


def test_picture_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(LaunchError, match=r"mpicoll\[plot\]"):
        picture("unused.svg", [], step=0)
