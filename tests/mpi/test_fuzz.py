"""Random programs of calls, the same ones each time; `python -m benchmarks.run.fuzz` runs new ones for as long as one likes."""

import numpy as np
import pytest

from tests.support.cases import METHODS, REDUCTIONS, SIZE, WORLD
from tests.support.fuzzing import Fuzzer, forks, lane, programs
from tests.support.fuzzing.calls import FUNCTIONS
from tests.support.fuzzing.disturbances import BY
from tests.support.fuzzing.drawing import FORMS, PLAIN, calls, exchanges
from tests.support.fuzzing.neighbors import NEIGHBOR_METHODS, OTHERS, BoundExchange

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def fuzzer():
    made = Fuzzer(WORLD)
    yield made
    made.free()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS)
def test_every_collective_in_every_form(fuzzer, method, form):
    """One call at a time."""
    lanes = calls((method,), (form,)).map(lambda call: [[call]])
    one = lanes.map(lambda drawn: {"lanes": drawn, **PLAIN})
    assert fuzzer.search(one, examples=8 if SIZE == 2 else 2) == ""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", (*NEIGHBOR_METHODS, *OTHERS))
def test_every_exchange_in_every_form(fuzzer, method, form):
    """One call at a time, each on another graph."""
    one = exchanges((method,), (form,)).map(lambda call: {"lanes": [[call]], **PLAIN})
    assert fuzzer.search(one, examples=8 if SIZE == 2 else 2) == ""


def test_a_block_at_a_wrong_place_is_found(fuzzer, monkeypatch):
    """Here what is expected is that of another place."""
    expected = BoundExchange._values
    monkeypatch.setattr(BoundExchange, "_values", lambda bound, repetition, block, length: expected(
        bound, repetition, (block[0], block[1] + 1) if bound.wanted_is_made else block, length))
    one = exchanges(("Neighbor_alltoallv",)).map(lambda call: {"lanes": [[call]], **PLAIN})
    assert "wrong, the first at" in fuzzer.search(one, examples=100, smaller=False)


def test_random_programs(fuzzer):
    """Some hundreds of calls, several of them under way on several communicators."""
    before = fuzzer.made.total()
    examples = 30 if SIZE == 2 else 10  # three ranks on two cores are slow, and the long runs are made with both
    assert fuzzer.search(programs(), examples=examples) == ""
    assert fuzzer.made.total() > before + 3 * examples


@pytest.mark.mpi(min_size=2)
def test_a_wrong_value_is_found_and_made_smaller(fuzzer, monkeypatch):
    """A fuzzer that never finds anything proves nothing: here what it expects of MAX is wrong."""
    monkeypatch.setitem(FUNCTIONS, "MAX", np.minimum)
    plain = calls(REDUCTIONS).map(lambda call: {**PLAIN, "lanes": [[call]]})
    text = fuzzer.search(plain, examples=200)
    assert "wrong, the first at" in text and '"op": "MAX"' in text and text.count('"method"') < 4


def test_each_axis_once(fuzzer):
    """A late rank, a fork, an empty contribution, a plan that is started later, and each disturbance."""
    call = {"on": "world", "method": "Allreduce", "form": "begin", "algorithm": "ring", "segment": None, "counts": [5000],
            "dtype": "d", "op": "SUM", "root": 0, "place": "in place", "layouts": ["plain"], "memory": ["shared"],
            "empty": "", "seed": 1, "times": 1, "stays": False}  # fmt: skip
    gathered = {**call, "method": "Gatherv", "algorithm": None, "op": None, "place": "apart", "counts": [3, 0], "empty": "b"}
    late = {"late": 0, "when": "after", "limit": 0.05, "calls": [call]}
    plan = {**call, "form": "plan", "stays": True}
    steps = [{"keep": [5000, 300_000], "drop": 0}, call, {"fork": True}, late, gathered, plan,
             {"start": 3}, {"finish": "wait", "order": 5, "all": True}]  # fmt: skip
    for by in BY:
        assert fuzzer.run({**PLAIN, "lanes": [steps], "by": by, "doing": "arrays"}) == []


@pytest.mark.mpi(min_size=2)
def test_what_a_late_rank_or_a_child_changes_is_found(fuzzer, monkeypatch):
    """Arrays that are written to behind the fuzzer's back."""
    monkeypatch.setattr(forks, "_live", lambda rooms, keepsakes, comm: 5)
    kept = {"keep": [5000], "drop": 0}
    assert "status" in fuzzer.run({**PLAIN, "lanes": [[kept, {"fork": True}]]})[0]

    def spoilt(rooms, keepsakes, comm):
        keepsakes[0].array[7] += 1
        return ""

    monkeypatch.setattr(lane, "problem_of_child", spoilt)
    assert "1 bytes changed, the first at 7" in fuzzer.run({**PLAIN, "lanes": [[kept, {"fork": True}]]})[0]
