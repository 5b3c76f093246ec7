"""The meter beside a device that computes later, on a clock that stands still until told: no MPI, no GPU."""

import pytest

from mpicoll.train.monitor import Meter
from tests.support.fakes.metering import Device, Ranks, fields


@pytest.fixture
def device(clock):
    return Device(clock)


@pytest.fixture
def ranks():
    return Ranks()


@pytest.fixture
def meter(device, ranks):
    return Meter(ranks, device)


def test_a_step_ends_when_the_device_has_done_it(meter, device, clock):
    with meter.step():
        with meter.computing():
            clock.sleep(1)
            device.compute(6)
    assert fields(meter, "step_s", "compute_s", "exposed_s") == [(7, 7, 0)]


def test_no_phase_waits_for_the_device(meter, device, clock, ranks):
    waits = device.waits
    with meter.step():
        for bucket in range(9):
            with meter.computing(f"update {bucket}"):
                device.compute(5)
            with meter.waiting(f"reduce {bucket}"):
                clock.sleep(1)
            with meter.communicating():
                ranks.send(1)
            meter.mark()
        assert (clock.now, device.waits) == (1009, waits)
    assert device.waits == waits + 1


@pytest.mark.parametrize("phase", ["waiting", "communicating"])
def test_to_wait_while_the_device_computes_is_no_exposed_communication(meter, device, clock, phase):
    meter.tracing = True
    with meter.step():
        with meter.computing("backward"):
            device.compute(30)
        with getattr(meter, phase)("bucket"):
            clock.sleep(50)
        with getattr(meter, phase)("bucket"):
            clock.sleep(4)
    assert fields(meter, "compute_s", "exposed_s", "step_s") == [(30, 24, 54)]
    spans = [(event.kind, event.name, event.end - event.begin) for event in meter.events if event.kind in ("compute", "wait")]
    assert spans == [("compute", "backward", 0), ("compute", "device", 30), ("wait", "bucket", 20), ("wait", "bucket", 4)]


def test_what_is_computed_for_longer_than_it_is_waited(meter, device, clock):
    with meter.step():
        with meter.computing("step"):  # as PyTorch's users have it: around everything
            device.compute(30)
            with meter.waiting("bucket"):
                clock.sleep(10)
    assert fields(meter, "compute_s", "exposed_s", "step_s") == [(30, 0, 30)]


def test_a_collective_is_in_flight_from_when_its_input_is_there(meter, device, clock):
    with meter.step():
        begin = clock.now
        with meter.computing("backward"):
            device.compute(30)
        given = meter.mark()
        device.compute(8)
        with meter.waiting("bucket"):
            clock.sleep(50)
        meter.in_flight("bucket", begin, clock.now, after=given)
    assert fields(meter, "communication_s", "compute_s", "exposed_s") == [(20, 38, 12)]


def test_a_flight_into_the_next_step(meter, device, clock):
    with meter.step():
        begin = clock.now
        device.compute(10)
        given = meter.mark()
    with meter.step():
        clock.sleep(5)
        meter.in_flight("parameters", begin, clock.now, after=given)
    assert fields(meter, "communication_s", "step_s") == [(0, 10), (5, 5)]
