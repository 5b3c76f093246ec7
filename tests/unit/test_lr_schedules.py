"""Learning-rate schedules: against formulas written apart and PyTorch."""

import math

import numpy
import pytest

from mpicoll.errors import ArgumentError
from mpicoll.train import SGD
from mpicoll.train.optim.lr_schedules import Cosine, Linear, StepDecay, Warmup, parse


def test_each_step_has_its_rate():
    optimizer, x = SGD(lr=0.5, schedule=Warmup(2, StepDecay(2, 0.1))), numpy.zeros(1)
    assert optimizer.rate == 0.25
    rates, moved = [], []
    for _ in range(6):
        before = x[0]
        optimizer.update(x, numpy.ones(1))
        rates.append(optimizer.rate)
        moved.append(before - x[0])
    numpy.testing.assert_allclose(rates, [0.25, 0.5, 0.5, 0.5, 0.05, 0.05], rtol=1e-14)
    numpy.testing.assert_allclose(moved, rates, rtol=1e-12)
    optimizer.lr = 5.0
    assert optimizer.rate == pytest.approx(0.5)


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_cosine_and_linear_go_from_one_to_the_final_factor(final):
    for step in range(1, 15):
        passed = min((step - 1) / 10, 1)
        cosine = final + (1 - final) * math.cos(math.pi / 2 * passed) ** 2  # (1 + cos 2x) / 2 = cos(x)**2
        assert Cosine(10, final)(step) == pytest.approx(cosine, abs=1e-15)
        assert Linear(10, final)(step) == pytest.approx(1 + (final - 1) * passed, abs=1e-15)
    assert Cosine(10, final)(1) == Linear(10, final)(1) == 1
    assert Cosine(10, final)(11) == Linear(10, final)(11) == final


@pytest.mark.parametrize("text, warmup, expected", [
    ("constant", 0, None),
    ("constant", 5, Warmup(5)),
    ("cosine:100", 0, Cosine(100)),
    ("linear:100", 3, Warmup(3, Linear(100))),
    ("step:30", 0, StepDecay(30)),
    ("step:30,0.5", 0, StepDecay(30, 0.5)),
])
def test_schedules_by_their_text(text, warmup, expected):
    assert parse(text, warmup) == expected


@pytest.mark.parametrize("text", ["", "cosin:3", "constant:3", "cosine", "cosine:", "cosine:a", "cosine:1.5", "cosine:3,1",
                                  "step:3,0.1,2", "step:,1", "Cosine:3"])
def test_text_that_is_no_schedule(text):
    with pytest.raises(ArgumentError, match=r"expected constant, cosine:STEPS, linear:STEPS or step:EVERY\[,FACTOR\], got"):
        parse(text)


@pytest.mark.parametrize("make, message", [
    (lambda: parse("cosine:0"), "in 'cosine:0', steps: expected an integer of at least 1"),
    (lambda: parse("step:5,nan"), "factor: expected a number above 0 and at most 1, got nan"),
    (lambda: parse("constant", -1), "warmup: expected an integer of at least 0"),
    (lambda: Linear(5, final=2), "final: expected a number from 0 to 1"),
    (lambda: Cosine(1.5), "steps: expected an integer"),
    (lambda: StepDecay(0), "every: expected an integer"),
    (lambda: Cosine(5, "low"), "final: expected a number from 0 to 1, got 'low'"),
    (lambda: Linear("5"), "steps: expected an integer"),
    (lambda: StepDecay(5, None), "factor: expected a number above 0 and at most 1, got None"),
    (lambda: Warmup(3, then=1), "then: expected None or a function"),
])
def test_wrong_schedules(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.thorough
def test_schedules_are_those_of_pytorch(torch):
    made = torch.optim.lr_scheduler
    pairs = [
        (Linear(5, 0.1), lambda it: made.LinearLR(it, start_factor=1.0, end_factor=0.1, total_iters=5)),
        (StepDecay(3, 0.5), lambda it: made.StepLR(it, 3, 0.5)),
        (Warmup(4), lambda it: made.LinearLR(it, start_factor=0.25, end_factor=1.0, total_iters=3)),
    ]
    for ours, make in pairs:
        reference = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        schedule = make(reference)
        for step in range(1, 10):
            assert ours(step) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
            reference.step()
            schedule.step()
