"""The pipes of shared memory, model checked: in no order of steps a message is lost, torn, overtaken or read too late."""

import pytest

from tests.support.slot_model import ENTRIES, Memory, Pipe, Step, changed, explore, given_up

#: what a pipe may do otherwise, each of which must be found
MUTANTS = (
    "published before it is copied", "one too many", "entries are not waited for", "not waited until it is read",
    "counted before it is read", "nobody looks who gave up", "numbered before it is there", "any number will do",
)  # fmt: skip


def memory_of(*places: str, pipes, strands) -> Memory:
    memory = {cell: value for pipe in pipes for cell, value in pipe.empty().items()}
    memory |= {f"{place} {half}": 0 for place in places for half in (0, 1)}
    return memory | {f"{strand} got {half}": None for strand in strands for half in (0, 1)}


def pieces(mutant: str = "") -> tuple[int, str]:
    """Two ranks, pieces in slots in both directions: more than there are slots and entries."""
    there, back = Pipe("0 to 1", frozenset([mutant])), Pipe("1 to 0")
    strands = {
        "0 sends": list(there.in_slots(1, 2, 3, 4, 5)), "1 receives": list(there.received("1 receives", 1, 2, 3, 4, 5)),
        "1 sends": list(back.in_slots(6, 7, 8)), "0 receives": list(back.received("0 receives", 6, 7, 8)),
    }  # fmt: skip
    return explore(strands, memory_of(pipes=[there, back], strands=strands))


def small(mutant: str = "") -> tuple[int, str]:
    """Messages with room in their entries, among pieces in slots."""
    pipe = Pipe("0 to 1", frozenset([mutant]))
    sends = [*pipe.in_entries(1, 2, 3, 4, 5), *pipe.in_slots(6), *pipe.in_entries(7)]
    strands = {"0 sends": sends, "1 receives": list(pipe.received("1 receives", 1, 2, 3, 4, 5, 6, 7))}
    return explore(strands, memory_of(pipes=[pipe], strands=strands))


def places(mutant: str = "") -> tuple[int, str]:
    """A rank's memory is read where it lies, between pieces in slots; then its program changes it."""
    pipe = Pipe("0 to 1", frozenset([mutant]))
    sends = [*changed("x", 7), *pipe.where_it_lies("x"), *pipe.in_slots(1), *pipe.where_it_lies("x"), *pipe.where_it_lies("x"),
             *pipe.in_slots(2), pipe.all_read(), *changed("x", 8), *pipe.where_it_lies("x")]  # fmt: skip
    strands = {"0 sends": sends, "1 receives": list(pipe.received("1 receives", 7, 1, 7, 7, 2, 8))}
    return explore(strands, memory_of("x", pipes=[pipe], strands=strands))


def entries(mutant: str = "") -> tuple[int, str]:
    """More messages that lie somewhere than there are entries."""
    pipe = Pipe("0 to 1", frozenset([mutant]))
    cells = [f"place {number}" for number in range(ENTRIES + 2)]
    sends = [step for number, cell in enumerate(cells) for step in (*changed(cell, number), *pipe.where_it_lies(cell))]
    strands = {"0 sends": sends, "1 receives": list(pipe.received("1 receives", *range(len(cells))))}
    return explore(strands, memory_of(*cells, pipes=[pipe], strands=strands))


def leaving(mutant: str = "") -> tuple[int, str]:
    """A rank gives up while its memory is read, and its program changes it."""
    pipe = Pipe("0 to 1", frozenset([mutant]))
    strands = {
        "0 sends": [*pipe.in_slots(1, 2), *changed("x", 7), *pipe.where_it_lies("x")],
        "0 gives up": [*given_up(pipe), *changed("x", 8)],
        "1 receives": list(pipe.received("1 receives", 1, 2, 7)),
    }
    return explore(strands, memory_of("x", pipes=[pipe], strands=strands))


def writing(early: bool = False) -> tuple[int, str]:
    """The receiver says where, the sender writes there and says so: `Write` and `Written`."""
    there, back = Pipe("0 to 1"), Pipe("1 to 0")
    writes: list[Step] = []
    reads: list[Step] = []
    for value in (3, 4):
        puts, told = list(changed("y", value)), list(there.where_it_lies("y"))
        writes += [back.has_come(), back.counted(), *(told + puts if early else puts + told)]
        reads += [*changed("y", 0), *back.where_it_lies("y"), *there.received("1 reads", value)]
    sends = list(there.in_slots(5)), list(there.received("1 reads", 5))
    strands = {"0 writes": writes + sends[0], "1 reads": reads + sends[1]}
    return explore(strands, memory_of("y", pipes=[there, back], strands=strands))


def sleeping(mutant: str = "") -> tuple[int, str]:
    """A rank that waits sleeps, and is woken. The real one wakes by itself, too, so it would only be late."""
    pipe = Pipe("0 to 1", frozenset([mutant]), wakes=True)
    receives = [step for value in (1, 2) for step in (*pipe.asleep("1 receives"), *pipe.received("1 receives", value))]
    strands = {"0 sends": list(pipe.in_slots(1, 2)), "1 receives": receives}
    return explore(strands, memory_of(pipes=[pipe], strands=strands) | {"1 receives sees it": False})


def ring() -> tuple[int, str]:
    """Three ranks, each of which sends two pieces to the next."""
    pipes = [Pipe(f"{rank} to {(rank + 1) % 3}") for rank in range(3)]
    strands = {}
    for rank, pipe in enumerate(pipes):
        strands[f"{rank} sends"] = list(pipe.in_slots(rank, rank + 3))
        strands[f"{(rank + 1) % 3} receives"] = list(pipe.received(f"{(rank + 1) % 3} receives", rank, rank + 3))
    return explore(strands, memory_of(pipes=pipes, strands=strands))


@pytest.mark.parametrize(("exchange", "least"), [
    (pieces, 3_000), (small, 100), (places, 100), (entries, 200), (leaving, 100), (writing, 20), (sleeping, 50), (ring, 50_000),
])  # fmt: skip
def test_no_order_of_steps_is_wrong(exchange, least):
    states, wrong = exchange()
    assert wrong == "" and states > least


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_change_of_the_protocol_is_found(mutant):
    exchanges = {"nobody looks who gave up": leaving, "entries are not waited for": entries,
                 "not waited until it is read": places, "numbered before it is there": entries}  # fmt: skip
    _, wrong = exchanges.get(mutant, pieces)(mutant)
    assert " instead of " in wrong or "nobody can go on" in wrong


@pytest.mark.parametrize("mutant", ["published before it is copied", "one too many", "counted before it is read"])
def test_each_change_is_found_in_small_messages(mutant):
    assert " instead of " in small(mutant)[1]


@pytest.mark.parametrize("mutant", ["nobody wakes who sleeps", "looks before it lies down"])
def test_who_is_not_woken_is_found(mutant):
    assert "nobody can go on" in sleeping(mutant)[1]


def test_a_place_that_is_told_of_too_early_is_found():
    assert " instead of 3" in writing(early=True)[1]
