"""Values and streams on the stand-in for a device, which knows what was ordered after what."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mpicoll.gpu import streams
from tests.support.device_streams import DeviceStreams
from tests.support.device_values import DeviceValues

pytestmark = pytest.mark.mpi


@pytest.fixture
def slow():
    """The stand-in is late by itself."""
    return lambda: None


class TestFakeValues(DeviceValues):
    pass


class TestFakeStreams(DeviceStreams):
    pass


def test_threads_that_ask_at_once_get_the_same_streams(xp, monkeypatch):
    """A copy in one pair of streams is not ordered before a reduction in another."""
    monkeypatch.setattr(streams, "_STREAMS", {})
    made = threading.Barrier(2, timeout=50)

    class Streams(streams.Streams):
        def __init__(self):
            super().__init__()
            made.wait()

    monkeypatch.setattr(streams, "Streams", Streams)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: streams.current_streams(), range(2))
    assert first is second
