"""The extension under the sanitizers of gcc, and that they would find what they are for."""

import pytest

from tests.support import sanitizing
from tests.support.launching import ROOT, installations

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(sanitizing.missing()), reason=f"sanitizers: {sanitizing.missing()}"),
]
SOURCE = ROOT / "mpicoll/_engine.c"


@pytest.mark.parametrize("size", [2, 3])
def test_threads_in_place_of_ranks(tmp_path, size):
    sanitizing.threads(tmp_path, size)


@pytest.mark.parametrize(("right", "wrong", "told"), [
    ("(word, value, memory_order_release)", "(word, value, memory_order_relaxed)", "data race"),
    ("if (unread(n) >= SLOTS) return WAITS;", "if (unread(n) > SLOTS) return WAITS;", "wrong elements: [1-9]|data race"),
    ("return get(p->near[i->peer].out + READ) >= m->last ? DONE : WAITS;", "return DONE;", "wrong elements: [1-9]|data race"),
])  # fmt: skip
def test_planted_errors_are_found(tmp_path, right, wrong, told):
    """A word that is published too early, a slot that is used too early, memory that is changed before it was read."""
    text = SOURCE.read_text()
    assert text.count(right) == 1
    (tmp_path / "planted.c").write_text(text.replace(right, wrong))
    with pytest.raises(AssertionError, match=told):
        sanitizing.threads(tmp_path, 2, tmp_path / "planted.c")


def test_ranks(tmp_path):
    sanitizing.ranks(installations()[0], tmp_path)
