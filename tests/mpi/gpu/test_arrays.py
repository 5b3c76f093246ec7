"""The checks of device memory on a real device: staged always, direct where a trial has shown that MPI takes pointers."""

import pytest

from tests.support.device_streams import DeviceStreams
from tests.support.device_training import DeviceTraining
from tests.support.device_values import DeviceValues
from tests.support.devices import DeviceArrays

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


class TestArrays(DeviceArrays):
    pass


class TestValues(DeviceValues):
    pass


class TestStreams(DeviceStreams):
    pass


class TestTraining(DeviceTraining):
    pass
