"""The XML files of MSCCL's algorithms: for each threadblock of each GPU, a list of steps.

The meaning of a step is that of MSCCL's interpreter; other tools may write more attributes, which
are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree

from ..errors import ArgumentError

#: the names of buffers in a file
BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
#: chunks that all steps together use, at most; each takes about 10 us of a proof
_MOST_CHUNKS = 1_000_000
#: chunks of the vectors of all GPUs, at most: an expression has a bit for each
_MOST_CONTRIBUTIONS = 1 << 16


class Connection(NamedTuple):
    """What a connection holds before the sender waits: messages, and bytes of each at most."""

    messages: int
    message_bytes: int


#: the connections by protocol, as NCCL makes them by default
CONNECTIONS = {
    "Simple": Connection(2, 1 << 21),
    "LL": Connection(8, 1 << 15),
    "LL128": Connection(8, 576000),
}


class StepKind(NamedTuple):
    """What a step of some type does, in this order."""

    receives: bool = False
    #: reads its source, and adds it to what was received
    reads: bool = False
    #: adds what its target holds
    adds: bool = False
    writes: bool = False
    sends: bool = False


KINDS = {
    "s": StepKind(reads=True, sends=True),
    "r": StepKind(receives=True, writes=True),
    "rcs": StepKind(receives=True, writes=True, sends=True),
    "rrs": StepKind(receives=True, reads=True, sends=True),
    "rrc": StepKind(receives=True, reads=True, writes=True),
    "rrcs": StepKind(receives=True, reads=True, writes=True, sends=True),
    "cpy": StepKind(reads=True, writes=True),
    "re": StepKind(reads=True, adds=True, writes=True),
    "nop": StepKind(),
}


class Chunks(NamedTuple):
    """The first of some chunks of a buffer."""

    buffer: str
    first: int


class MscclStep(NamedTuple):
    """One step of a threadblock, on `count` chunks in turn."""

    number: int
    type: str
    source: Chunks
    target: Chunks
    count: int  # type: ignore[assignment]  # not tuple's method
    #: the threadblock of the same GPU, and the step of it, that must have ended before; or None
    waits_for: tuple[int, int] | None
    #: whether its end is told to other threadblocks
    is_awaited: bool

    @property
    def kind(self) -> StepKind:
        """What it does."""
        return KINDS[self.type]


class Threadblock(NamedTuple):
    """One threadblock: a peer that it sends to and one that it receives from, -1 for none."""

    number: int
    target: int
    source: int
    channel: int
    steps: tuple[MscclStep, ...]


class Gpu(NamedTuple):
    """The program of one GPU."""

    number: int
    #: the chunks of each buffer
    chunks: dict[str, int]
    threadblocks: tuple[Threadblock, ...]


class MscclAlgorithm(NamedTuple):
    """The content of a file."""

    name: str
    collective: str
    protocol: str
    #: the chunks of the vector: the larger of input and output
    chunks: int
    #: the longest vector that it is for; None: any
    max_bytes: int | None
    #: the calls that it is for
    in_place: bool
    out_of_place: bool
    gpus: tuple[Gpu, ...]

    @property
    def steps(self) -> int:
        """The number of all steps."""
        return sum(len(block.steps) for gpu in self.gpus for block in gpu.threadblocks)


def read(text: str | bytes) -> MscclAlgorithm:
    """The algorithm that an XML text describes.

    Raises
    ------
    ArgumentError
        It is not MSCCL's format; the message says where and why.
    """
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ArgumentError(f"it is not XML: {error}") from None
    if root.tag != "algo":
        raise ArgumentError(f"expected <algo ...> as MSCCL's files have, got <{root.tag}>")
    head = _Element(root, "the algorithm")
    size = head.number("ngpus", least=1)
    in_place = head.flag("inplace")
    out_of_place = head.flag("outofplace", default=not in_place)
    if not in_place and not out_of_place:
        head.fail("it is for calls neither in place nor out of place")
    protocol = head.choice("proto", CONNECTIONS)
    channels = head.number("nchannels", least=0)
    gpus = sorted(_gpu(child, size, channels) for child in head.children("gpu"))
    if len(gpus) != size or any(gpu.number != number for number, gpu in enumerate(gpus)):
        there = ", ".join(str(gpu.number) for gpu in gpus[:8])
        head.fail(f"expected GPUs 0 to {size - 1}, each once, got {there or 'none'}")
    chunks = head.number("nchunksperloop", least=1)
    if size * chunks > _MOST_CONTRIBUTIONS:
        head.fail(
            f"{size} GPUs with {chunks} chunks each (nchunksperloop) are too many to prove:"
            f" expected at most {_MOST_CONTRIBUTIONS} chunks together"
        )
    algorithm = MscclAlgorithm(
        name=head.text("name", default=""),
        collective=head.text("coll"),
        protocol=protocol,
        chunks=chunks,
        max_bytes=head.number("maxBytes", least=0, default="0") or None,
        in_place=in_place,
        out_of_place=out_of_place,
        gpus=tuple(gpus),
    )
    used = sum(step.count for gpu in gpus for tb in gpu.threadblocks for step in tb.steps)
    if used > _MOST_CHUNKS:
        head.fail(
            f"its steps on {used} chunks (cnt) are too many to prove: expected at most"
            f" {_MOST_CHUNKS} together"
        )
    return algorithm


class _Element:
    """An element with its place in the file, for messages."""

    def __init__(self, element: ElementTree.Element, place: str) -> None:
        self._element = element
        self._place = place

    def fail(self, message: str) -> NoReturn:
        """Raise the ArgumentError of this place."""
        raise ArgumentError(f"{self._place}: {message}") from None

    def text(self, name: str, default: str | None = None) -> str:
        """An attribute, which must be there unless it has a default."""
        value = self._element.get(name, default)
        if value is None:
            self.fail(f"the attribute {name!r} is missing")
        return value

    def number(
        self, name: str, least: int, most: int | None = None, default: str | None = None
    ) -> int:
        """An attribute that is a whole number."""
        text = self.text(name, default)
        try:
            value = int(text)
        except ValueError:
            self.fail(f"expected a whole number for {name!r}, got {text[:80]!r}")
        if value < least or (most is not None and value > most):
            limit = f"{least} or more" if most is None else f"{least} to {most}"
            self.fail(f"expected {limit} for {name!r}, got {value}")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """An attribute that is 0 or 1."""
        text = None if default is None else str(int(default))
        return bool(self.number(name, least=0, most=1, default=text))

    def choice(self, name: str, words: Collection[str]) -> str:
        """An attribute that is one of some words."""
        word = self.text(name)
        if word not in words:
            self.fail(f"expected one of {', '.join(words)} for {name!r}, got {word[:80]!r}")
        return word

    def children(self, tag: str) -> Iterator[ElementTree.Element]:
        """The elements in it, which must all have this tag."""
        for child in self._element:
            if child.tag != tag:
                self.fail(f"expected <{tag}>, got <{child.tag}>")
            yield child


def _gpu(element: ElementTree.Element, size: int, channels: int) -> Gpu:
    number = _Element(element, "a GPU").number("id", least=0, most=size - 1)
    gpu = _Element(element, f"GPU {number}")
    chunks = {buffer: gpu.number(f"{buffer}_chunks", least=0) for buffer in BUFFERS}
    blocks = sorted(
        _threadblock(child, number, size, channels, chunks) for child in gpu.children("tb")
    )
    if [block.number for block in blocks] != list(range(len(blocks))):
        gpu.fail("expected threadblocks 0, 1, 2, ..., each once")
    return Gpu(number, chunks, tuple(blocks))


def _threadblock(
    element: ElementTree.Element, gpu: int, size: int, channels: int, chunks: dict[str, int]
) -> Threadblock:
    number = _Element(element, f"GPU {gpu}, a threadblock").number("id", least=0)
    place = f"GPU {gpu}, threadblock {number}"
    block = _Element(element, place)
    target = block.number("send", least=-1, most=size - 1)
    source = block.number("recv", least=-1, most=size - 1)
    if gpu in (target, source):
        block.fail("it sends to, or receives from, its own GPU")
    # a threadblock without peers may have no channel
    has_peers = target >= 0 or source >= 0
    channel = block.number("chan", least=0 if has_peers else -1, most=max(channels - 1, 0))
    steps: list[MscclStep] = []
    for child in block.children("step"):
        step = _step(child, place, chunks)
        if step.number != len(steps):
            block.fail(f"expected step {len(steps)}, got step {step.number}")
        if (step.kind.sends and target < 0) or (step.kind.receives and source < 0):
            block.fail(f"step {step.number} ({step.type}) needs a peer, but there is none")
        if steps and steps[-1].type == "nop" and step.type != "nop" and not step.waits_for:
            block.fail(f"step {step.number} follows a nop, so it must depend on a step as well")
        steps.append(step)
    return Threadblock(number, target, source, channel, tuple(steps))


def _step(element: ElementTree.Element, block: str, chunks: dict[str, int]) -> MscclStep:
    number = _Element(element, f"{block}, a step").number("s", least=0)
    step = _Element(element, f"{block}, step {number}")
    word = step.choice("type", KINDS)
    kind = KINDS[word]
    source = _chunks(step, "src")
    target = _chunks(step, "dst")
    is_nop = kind == KINDS["nop"]
    count = step.number("cnt", least=0 if is_nop else 1)
    for used, part in ((kind.reads, source), (kind.writes, target)):
        if used and not 0 <= part.first <= chunks[part.buffer] - count:
            there = f"the {chunks[part.buffer]} chunks of the {BUFFERS[part.buffer]}"
            step.fail(f"{count} chunks from {part.first} on are not among {there}")
    depends = step.number("depid", least=-1)
    awaited = step.number("deps", least=-1)
    if depends >= 0 and awaited < 0:
        # MSCCL's interpreter would wait for nothing here
        step.fail(f"it depends on threadblock {depends} (depid), but on no step of it (deps)")
    waits_for = None if depends < 0 else (depends, awaited)
    if is_nop and not waits_for:
        step.fail("it is a nop that depends on nothing")
    return MscclStep(number, word, source, target, count, waits_for, step.flag("hasdep"))


def _chunks(step: _Element, end: str) -> Chunks:
    buffer = step.choice(f"{end}buf", BUFFERS)
    return Chunks(buffer, step.number(f"{end}off", least=-1))
