"""The meter on a clock that stands still until told: no MPI."""

import numpy
import pytest

from mpicoll.train.monitor import Meter
from tests.support.fakes.metering import Ranks, fields


@pytest.fixture
def ranks():
    return Ranks()


@pytest.fixture
def meter(clock, ranks):
    return Meter(ranks, numpy)


# ---- phases


def test_phases_add_up_and_count_their_bytes(meter, clock, ranks):
    with meter.step():
        clock.sleep(1)
        with meter.loading():
            clock.sleep(2)
            ranks.send(30)
        for _ in range(2):
            with meter.computing():
                clock.sleep(10)
        with meter.communicating():
            clock.sleep(5)
            ranks.send(400)
        meter.count(7000)
    assert meter.steps == [{
        "step_s": 28, "compute_s": 20, "communication_s": 7, "exposed_s": 7, "bytes": 7400, "data_bytes": 30,
    }]  # fmt: skip


def test_a_phase_leaves_out_the_phases_inside_it(meter, clock):
    with meter.step():
        with meter.computing("forward"):
            clock.sleep(1)
            with meter.waiting("parameters"):
                clock.sleep(10)
            clock.sleep(2)
            with meter.computing("layer"):
                clock.sleep(100)
                with meter.waiting("parameters"):
                    clock.sleep(20)
            with meter.communicating("loss"):
                clock.sleep(40)
        with meter.computing("update"):
            clock.sleep(4)
    assert fields(meter, "compute_s", "exposed_s", "communication_s", "step_s") == [(107, 70, 40, 177)]


def test_an_estimate_replaces_the_bytes(clock):
    meter = Meter(Ranks(), numpy, estimate=12)
    with meter.step():
        meter.count(100)
    assert meter.steps[0]["bytes"] == 12


def test_what_is_outside_steps_counts_nowhere(meter, clock):
    for _ in range(2):
        with meter.waiting("evaluation"):
            clock.sleep(50)
        with meter.communicating("evaluation"):
            clock.sleep(50)
        meter.count(9)
        with meter.step():
            clock.sleep(1)
    assert [sum(step.values()) for step in meter.steps] == [1, 1]


def test_a_step_that_fails_is_not_kept(meter, clock):
    for wanted in (1, 1, 2):
        with meter.step(), meter.computing():
            clock.sleep(3)
        with pytest.raises(KeyError), meter.step(), meter.computing():
            with meter.waiting("bucket"):
                clock.sleep(8)
                raise KeyError
    assert fields(meter, "compute_s", "exposed_s") == [(3, 0)] * 3


# ---- flights


UNIONS = [
    ([], 0),
    ([(1, 3)], 2),
    ([(1, 3), (3, 4)], 3),
    ([(1, 5), (2, 3)], 4),
    ([(2, 3), (1, 5)], 4),
    ([(1, 4), (3, 6), (8, 9)], 6),
    ([(4, 6), (1, 2), (5, 9), (4, 6)], 6),
    ([(5, 5)], 0),
    ([(-7, 2)], 2),
    ([(-7, -2)], 0),
    ([(-7, 10), (3, 4)], 10),
]


@pytest.mark.parametrize("flights, seconds", UNIONS)
def test_communication_is_the_union_of_the_flights_within_the_step(meter, clock, flights, seconds):
    begin = clock.now
    with meter.step():
        clock.sleep(10)
        for first, last in flights:
            meter.in_flight("bucket", begin + first, begin + last)
    assert fields(meter, "communication_s", "exposed_s", "compute_s") == [(seconds, 0, 0)]


def test_blocking_communication_and_flights_are_counted_once(meter, clock):
    with meter.step():
        begin = clock.now
        with meter.communicating():
            clock.sleep(4)
        clock.sleep(3)
        meter.in_flight("bucket", begin + 2, begin + 6)
    assert fields(meter, "communication_s") == [(6,)]


def test_a_flight_over_several_steps_is_cut_at_their_ends(meter, clock):
    begin = clock.now
    for number in range(3):
        with meter.step():
            clock.sleep(10)
            if number == 2:
                meter.in_flight("parameters", begin + 6, clock.now - 3)
        clock.sleep(100)  # between steps: nobody's
    assert fields(meter, "communication_s") == [(4,), (10,), (7,)]


def test_a_flight_may_be_reported_late_and_sums_are_read_in_between(meter, clock):
    begin = clock.now
    with meter.step():
        clock.sleep(10)
        meter.in_flight("one", begin + 1, begin + 4)
        assert meter.steps == []
    assert fields(meter, "communication_s") == [(3,)]
    meter.in_flight("two", begin + 3, begin + 6)
    assert meter.total("communication_s") == 5
    with meter.step():
        clock.sleep(10)
        meter.in_flight("three", begin + 8, begin + 12)
        assert meter.total("communication_s") == 7
    assert fields(meter, "communication_s") == [(7,), (2,)]


@pytest.mark.parametrize("later", range(6))
def test_old_steps_are_final(meter, clock, later):
    begin = clock.now
    for number in range(8):
        with meter.step():
            clock.sleep(10)
            meter.in_flight("own", clock.now - 10, clock.now - 9)
            if number == 1 + later:
                meter.in_flight("late", begin + 15, begin + 17)
    seconds = [1] * 8
    if later < 4:  # three steps back still count
        seconds[1] += 2
    assert [step["communication_s"] for step in meter.steps] == seconds


def test_overlap_with_the_next_forward(meter, clock):
    """Per step: 2 waiting for parameters, 6 computing, the gather of the last 5 of which 3 reach into the next step."""
    gathers = None
    for _ in range(5):
        with meter.step():
            with meter.computing("forward"):
                with meter.waiting("parameters"):
                    clock.sleep(2)
                if gathers:
                    meter.in_flight("parameters", gathers, clock.now + 1)
                clock.sleep(6)
            gathers = clock.now - 2
    assert fields(meter, "compute_s", "exposed_s") == [(6, 2)] * 5
    assert [step["communication_s"] for step in meter.steps] == [2, 5, 5, 5, 3]
    assert meter.hidden() == 3 / 5
    assert meter.hidden(-1) == 1 / 3 and meter.hidden(0, 1) == 0


# ---- sums over steps and ranks


def steps(meter, clock, *seconds):
    for compute in seconds:
        with meter.step():
            with meter.computing():
                clock.sleep(compute)
            meter.count(compute)


def test_totals_and_medians(meter, clock):
    steps(meter, clock, 4, 1, 3, 10)
    assert meter.total("compute_s") == 18 and meter.total("compute_s", 2) == 13
    assert meter.typical("compute_s") == 3.5 and meter.typical("bytes") == 3
    assert meter.typical("compute_s", 1, 3) == 2


def test_nothing_to_hide(meter, clock):
    assert meter.hidden() is None
    steps(meter, clock, 4)
    assert meter.hidden() is None
    with meter.step(), meter.communicating():
        clock.sleep(5)
    assert meter.hidden(1) is None
    with meter.step():
        with meter.computing():
            clock.sleep(5)
        with meter.communicating():
            clock.sleep(5)
    assert meter.hidden(2) == 0


@pytest.mark.parametrize("rank, waiting", [(0, 4), (1, 3), (2, 0)])
def test_summary_of_ranks(clock, rank, waiting):
    seconds = [[2, 3, 3], [3, 6, 6], [6, 7, 9]]
    meter = Meter(Ranks(rank, [other for number, other in enumerate(seconds) if number != rank]), numpy)
    steps(meter, clock, *seconds[rank])
    assert meter.ranks is None
    result = meter.summary_of_ranks()
    assert meter.ranks is result == {
        "compute_min_s": 3, "compute_median_s": 6, "compute_max_s": 7, "slowest_rank": 2,
        "waiting_s": waiting,
    }  # fmt: skip


# ---- events


def test_events_are_kept_on_request_only(meter, clock):
    steps(meter, clock, 1)
    assert meter.events == []
    meter.tracing = True
    with meter.step():
        with meter.computing("forward"):
            with meter.waiting("parameters 0"):
                clock.sleep(2)
            meter.in_flight("parameters 0", 1000, 1003)
        with meter.loading():
            clock.sleep(5)
    assert [event[:4] for event in meter.events] == [
        ("wait", "parameters 0", 1001, 1003), ("communication", "parameters 0", 1000, 1003),
        ("compute", "forward", 1001, 1003),
        ("wait", "samples", 1003, 1008), ("communication", "samples", 1003, 1008), ("step", "step 1", 1001, 1008),
    ]  # fmt: skip
