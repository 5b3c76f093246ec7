"""Values and streams on the stand-in for a device, which knows what was ordered after what."""

import pytest

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
