"""Random programs of calls, the same ones each time; `python -m benchmarks.run.fuzz` runs new ones for as long as one likes."""

import numpy as np
import pytest

from tests.support.cases import METHODS, SIZE, WORLD
from tests.support.fuzzing import Fuzzer, programs
from tests.support.fuzzing.calls import FUNCTIONS
from tests.support.fuzzing.drawing import FORMS, PLAIN, calls

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


def test_random_programs(fuzzer):
    """Some hundreds of calls, several of them under way on several communicators."""
    before = fuzzer.made.total()
    examples = 80 if SIZE == 2 else 20  # three ranks on two cores are slow, and the long runs are made with both
    assert fuzzer.search(programs(), examples=examples) == ""
    assert fuzzer.made.total() > before + 3 * examples


@pytest.mark.mpi(min_size=2)
def test_a_wrong_value_is_found_and_made_smaller(fuzzer, monkeypatch):
    """A fuzzer that never finds anything proves nothing: here what it expects of MAX is wrong."""
    monkeypatch.setitem(FUNCTIONS, "MAX", np.minimum)
    text = fuzzer.search(programs(most=3), examples=200)
    assert "wrong, the first at" in text and '"op": "MAX"' in text and text.count('"method"') < 4
