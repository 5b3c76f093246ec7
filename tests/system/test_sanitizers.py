"""The extension under the sanitizers of gcc, and that they would find what they are for."""

import re

import pytest

from tests.support import sanitizing
from tests.support.compiling import SOURCE
from tests.support.launching import installations

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(sanitizing.missing()), reason=f"sanitizers: {sanitizing.missing()}"),
]


WRONG = "wrong data|data race"
#: what an entry of another number leads to
STUCK = "no progress"


@pytest.mark.parametrize("size", [2, 3])
def test_threads_in_place_of_ranks(tmp_path, size):
    sanitizing.threads(tmp_path, size)


PLANTED = {
    "a word published too early": ("(word, value, memory_order_release)", "(word, value, memory_order_relaxed)"),
    "a slot used too early": ("if (!has_room(n, i->slot_count))", "if (!has_room(n, i->slot_count + 1))"),
    "memory changed before it was read": (
        "return get(p->near[i->peer].out + READ) >= m->last ? DONE : WAITS;", "return DONE;"),
    "an entry too many": ("(!has_room(n, ENTRIES))", "(!has_room(n, ENTRIES + 1))"),
    "a copy too long": ("place(p, i, 0) + m->moved, piece);", "place(p, i, 0) + m->moved, piece + 1);"),
    "two threads in one program": ("    if (!try_lock(p)) return 0;\n    int is_due = 1;", "    int is_due = 1;"),
}  # fmt: skip


def shows(folder, source, what):
    """Whether the threads find data wrong, or read while they are written, or one is stuck."""
    try:
        sanitizing.threads(folder, 2, source, patience=3)
    except AssertionError as error:
        return re.search(what, str(error)) is not None
    return False


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_found(tmp_path, name):
    right, wrong = PLANTED[name]
    text = SOURCE.read_text()
    assert right in text
    (tmp_path / "planted.c").write_text(text.replace(right, wrong))
    what = STUCK if name == "an entry too many" else WRONG
    # whether it shows depends on who comes first
    assert any(shows(tmp_path, tmp_path / "planted.c", what) for _ in range(30))


def test_ranks(tmp_path):
    sanitizing.ranks(installations()[0], tmp_path)
