"""A model of the pipes of shared memory, of which every order of steps is tried.

The steps of a rank are those of `mpicoll/_engine.c` and `mpicoll/shared_memory/ring.py`: between two of them another rank
may take any number. A rank that waits polls its messages in turn, so each of them is a strand of its own here. A copy has two
steps, those of its halves. What is wrong is found with the order of steps that leads there.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

#: fewer than the real ones: what goes wrong with 8 and 4 does with these
ENTRIES = 3
SLOTS = 2

Memory = dict[str, Any]


class Step(NamedTuple):
    """What a strand does at once, when `ready` allows it. function: of the code that does it."""

    function: str
    ready: Callable[[Memory], bool]
    effect: Callable[[Memory], None]


class Wrong(Exception):
    """A rank has got what it should not have."""


class GaveUp(Exception):
    """A rank has heard that another one gave up: its strand ends."""


def always(memory: Memory) -> bool:
    return True


class Pipe(NamedTuple):
    """From one rank to another. changed: what is done in another way than in the code; see the tests.

    wakes: the receiver sleeps; where it does not, the sender's look at that is no step.
    """

    name: str
    changed: frozenset[str] = frozenset()
    wakes: bool = False

    def word(self, name: str) -> str:
        return f"{self.name} {name}"

    def unread(self, memory: Memory) -> int:
        return memory[self.word("published")] - memory[self.word("read")]

    def empty(self) -> Memory:
        words = {self.word(word): 0 for word in ("published", "read", "given up", "sleeps")}
        words |= {self.word(f"number {number}"): 0 for number in range(ENTRIES)}
        entries = {self.word(f"entry {number}"): None for number in range(ENTRIES)}
        places = [f"slot {number}" for number in range(SLOTS)] + [f"room {number}" for number in range(ENTRIES)]
        return words | entries | {f"{self.word(place)} {half}": None for place in places for half in (0, 1)}

    # The sender.

    def in_slots(self, *values: object) -> Iterator[Step]:
        """Pieces, each copied to the next slot."""
        return self._copied("slot", SLOTS, *values)

    def in_entries(self, *values: object) -> Iterator[Step]:
        """Messages so small that they have room in their entries."""
        return self._copied("room", ENTRIES, *values)

    def _copied(self, place: str, count: int, *values: object) -> Iterator[Step]:
        limit = count + ("one too many" in self.changed)

        def next_place(memory: Memory) -> str:
            return self.word(f"{place} {memory[self.word('published')] % count}")

        for value in values:
            copies = [
                Step("publish_some: memcpy", always, lambda memory, half=half, value=value: memory.update(
                    {f"{next_place(memory)} {half}": value}))
                for half in (0, 1)
            ]  # fmt: skip
            publishing = self._published(next_place)
            yield Step("has_room", lambda memory: self.unread(memory) < limit, lambda memory: None)
            yield from (*publishing, *copies) if "published before it is copied" in self.changed else (*copies, *publishing)

    def where_it_lies(self, place: str) -> Iterator[Step]:
        """A message that the receiver reads in the sender's memory."""
        yield self._room()
        yield from self._published(lambda memory: place)

    def _room(self) -> Step:
        is_asked = "entries are not waited for" not in self.changed
        return Step("has_room", lambda memory: not is_asked or self.unread(memory) < ENTRIES, lambda memory: None)

    def _published(self, place: Callable[[Memory], str]) -> tuple[Step, ...]:
        early = "numbered before it is there" in self.changed

        def enter(memory: Memory) -> None:
            count = memory[self.word("published")] - early
            memory[self.word(f"entry {count % ENTRIES}")] = place(memory)

        def publish(memory: Memory) -> None:
            count = memory[self.word("published")]
            memory[self.word(f"number {count % ENTRIES}")] = memory[self.word("published")] = count + 1

        steps = Step("publish: the entry", always, enter), Step("publish: its number", always, publish)
        return *(steps[::-1] if early else steps), *([self._woken()] if self.wakes else [])

    def _woken(self) -> Step:
        """Wake the receiver, if it sleeps."""
        wakes = "nobody wakes who sleeps" not in self.changed
        return Step("wake", always, lambda memory: memory.update({self.word("sleeps"): 0} if wakes else {}))

    def all_read(self) -> Step:
        """The sender may change its memory."""
        is_asked = "not waited until it is read" not in self.changed
        return Step("wait_for", lambda memory: not is_asked or self.unread(memory) == 0, lambda memory: None)

    # The receiver.

    def asleep(self, strand: str) -> Iterator[Step]:
        """Wait for a message: say so, look once more, and sleep until a sender wakes this rank."""
        seen = f"{strand} sees it"
        lies = Step("lie_down", always, lambda memory: memory.update({self.word("sleeps"): 1}))
        looks = Step("next_entry", always, lambda memory: memory.update({seen: self.has_come().ready(memory)}))
        yield from (looks, lies) if "looks before it lies down" in self.changed else (lies, looks)
        yield Step("sleep_on", lambda memory: memory[seen] or not memory[self.word("sleeps")], lambda memory: None)

    def received(self, strand: str, *expected: object) -> Iterator[Step]:
        """Messages, each read and compared when it is counted as read."""

        def copy(half: int) -> Callable[[Memory], None]:
            def effect(memory: Memory) -> None:
                ahead = "counted before it is read" in self.changed
                place = memory[self.word(f"entry {(memory[self.word('read')] - ahead) % ENTRIES}")]
                memory[f"{strand} got {half}"] = memory.get(f"{place} {half}")

            return effect

        for value in expected:

            def compare(memory: Memory, value: object = value) -> None:
                got = memory[f"{strand} got 0"], memory[f"{strand} got 1"]
                if got != (value, value):
                    raise Wrong(f"{strand}: {got} instead of {value}")

            copies = [Step("receive: take", always, copy(half)) for half in (0, 1)]
            yield self.has_come()
            if "counted before it is read" in self.changed:
                yield from (self.counted(), *copies, Step("receive", always, compare))
            else:
                yield from (*copies, self.counted(compare))

    def has_come(self) -> Step:
        def is_there(memory: Memory) -> bool:
            read: int = memory[self.word("read")]
            number: int = memory[self.word(f"number {read % ENTRIES}")]
            return number == read + 1 or ("any number will do" in self.changed and number > 0)

        return Step("next_entry", is_there, lambda memory: None)

    def counted(self, then: Callable[[Memory], None] = lambda memory: None) -> Step:
        """Count a message as read, unless the sender has given up: it may have changed what was read."""

        def effect(memory: Memory) -> None:
            if memory[self.word("given up")] and "nobody looks who gave up" not in self.changed:
                raise GaveUp
            memory[self.word("read")] += 1
            then(memory)

        return Step("count_read", always, effect)


def changed(place: str, value: object) -> Iterator[Step]:
    """A rank's program writes to its memory."""
    for half in (0, 1):
        yield Step("the program", always, lambda memory, half=half: memory.update({f"{place} {half}": value}))


def given_up(*pipes: Pipe) -> Iterator[Step]:
    """A rank leaves a call in the middle, at any time."""
    for pipe in pipes:
        yield Step("give_up", always, lambda memory, pipe=pipe: memory.update({pipe.word("given up"): 1}))


def explore(strands: dict[str, list[Step]], memory: Memory) -> tuple[int, str]:
    """Try all orders of the strands' steps; returns how many states there are, and what is wrong, or "".

    Wrong is also a state in which nobody can go on, and not all have ended.
    """
    names = list(strands)
    cells = [*memory]
    start = tuple(0 for _ in names), tuple(memory.values())
    seen = {start}
    left: list[tuple[Any, tuple[str, ...]]] = [(start, ())]
    while left:
        (places, values), path = left.pop()
        now = dict(zip(cells, values))
        moved = False
        for number, name in enumerate(names):
            steps = strands[name]
            if places[number] == len(steps) or not steps[places[number]].ready(now):
                continue
            moved = True
            step, later = steps[places[number]], dict(now)
            told = (*path, f"{name}: {step.function}")
            reached = places[number] + 1
            try:
                step.effect(later)
            except GaveUp:
                reached = len(steps)
            except Wrong as error:
                return len(seen), f"{error}, after {'; '.join(told)}"
            state = (*places[:number], reached, *places[number + 1 :]), tuple(later[cell] for cell in cells)
            if state not in seen:
                seen.add(state)
                left.append((state, told))
        if not moved and any(place < len(strands[name]) for name, place in zip(names, places)):
            return len(seen), f"nobody can go on, after {'; '.join(path)}"
    return len(seen), ""
