"""Small algorithms in MSCCL's XML format, as lists that tests change before they write them."""

from dataclasses import dataclass, field, replace
from xml.sax.saxutils import quoteattr


@dataclass
class Step:
    """One step; `source` and `target` are buffer and chunk."""

    type: str
    source: tuple[str, int] = ("i", -1)
    target: tuple[str, int] = ("o", -1)
    count: int = 1
    depends: tuple[int, int] = (-1, -1)
    is_awaited: int = 0


@dataclass
class Block:
    """One threadblock."""

    send: int
    recv: int
    channel: int
    steps: list[Step]


@dataclass
class Algorithm:
    """One file; `gpus` are lists of threadblocks."""

    collective: str
    chunks: int
    gpus: list[list[Block]]
    protocol: str = "LL"
    head: dict[str, object] = field(default_factory=lambda: {"inplace": 1})
    buffers: tuple[int, int, int] = (16, 16, 16)

    def steps(self):
        """All steps with their GPU, threadblock and number."""
        for gpu, blocks in enumerate(self.gpus):
            for number, block in enumerate(blocks):
                for at in range(len(block.steps)):
                    yield gpu, number, at

    def copy(self):
        """A copy that may be changed."""
        gpus = [
            [replace(block, steps=[replace(step) for step in block.steps]) for block in blocks]
            for blocks in self.gpus
        ]
        return replace(self, gpus=gpus, head=dict(self.head))

    def xml(self):
        """The text of the file."""
        channels = 1 + max(block.channel for blocks in self.gpus for block in blocks)
        head = {
            "name": "test", "proto": self.protocol, "nchannels": channels, "nchunksperloop": self.chunks,
            "ngpus": len(self.gpus), "coll": self.collective, **self.head,
        }
        lines = [_tag("algo", head, ">")]
        i, o, s = self.buffers
        for gpu, blocks in enumerate(self.gpus):
            lines.append(_tag("gpu", {"id": gpu, "i_chunks": i, "o_chunks": o, "s_chunks": s}, ">"))
            for number, block in enumerate(blocks):
                ends = {"send": block.send, "recv": block.recv, "chan": block.channel}
                lines.append(_tag("tb", {"id": number, **ends}, ">"))
                lines += [_step(at, step) for at, step in enumerate(block.steps)]
                lines.append("</tb>")
            lines.append("</gpu>")
        return "\n".join([*lines, "</algo>"])


def _tag(name, attributes, end):
    return f"<{name} {' '.join(f'{key}={quoteattr(str(value))}' for key, value in attributes.items())}{end}"


def _step(number, step):
    return _tag("step", {
        "s": number, "type": step.type, "srcbuf": step.source[0], "srcoff": step.source[1], "dstbuf": step.target[0],
        "dstoff": step.target[1], "cnt": step.count, "depid": step.depends[0], "deps": step.depends[1],
        "hasdep": step.is_awaited,
    }, "/>")


def ring(size):
    """An allreduce in place, in a ring with one threadblock on each GPU."""
    gpus = []
    for gpu in range(size):
        last = 2 * size - 2
        steps = []
        for at in range(last + 1):
            chunk = "i", (gpu - at) % size
            kind = "s" if not at else "rrs" if at < size - 1 else "rrcs" if at == size - 1 else "rcs" if at < last else "r"
            steps.append(Step(kind, chunk, chunk))
        gpus.append([Block((gpu + 1) % size, (gpu - 1) % size, 0, steps)])
    return Algorithm("allreduce", size, gpus)


def all_pairs(size):
    """An allreduce in place: each GPU sums one chunk in a threadblock of its own, which the others wait for."""
    gpus = []
    for gpu in range(size):
        peers = [peer for peer in range(size) if peer != gpu]
        blocks = [
            Block(peer, peer, 0, [
                Step("s", ("i", peer), ("s", 0)),
                Step("r", ("i", gpu), ("s", at), is_awaited=1),
                Step("s", ("i", gpu), ("i", gpu), depends=(len(peers), 2 * len(peers) - 2)),
                Step("r", ("i", peer), ("i", peer)),
            ])
            for at, peer in enumerate(peers)
        ]
        sums = []
        for at in range(len(peers)):
            sums += [Step("nop", count=0, depends=(at, 1))] if at < len(peers) - 1 else []
        sums += [
            Step("re", ("s", at), ("i", gpu), depends=(len(peers) - 1, 1) if not at else (-1, -1))
            for at in range(len(peers))
        ]
        sums[-1].is_awaited = 1
        gpus.append([*blocks, Block(-1, -1, 0, sums)])
    return Algorithm("allreduce", size, gpus)


def gathering_pairs(size, in_place=True):
    """An allgather: each GPU sends its two chunks, in one step, to all others."""
    gpus = []
    for gpu in range(size):
        own = ("o", 2 * gpu) if in_place else ("i", 0)
        blocks = [
            Block(peer, peer, 0, [Step("s", own, ("o", 2 * gpu), 2), Step("r", ("o", 2 * peer), ("o", 2 * peer), 2)])
            for peer in range(size) if peer != gpu
        ]
        if not in_place:
            blocks.append(Block(-1, -1, 0, [Step("cpy", own, ("o", 2 * gpu), 2)]))
        gpus.append(blocks)
    return Algorithm("allgather", 2 * size, gpus, head={"inplace": int(in_place), "outofplace": int(not in_place)})


def scattered_sums(size):
    """A reduce_scatter out of place, through scratch memory."""
    gpus = []
    for gpu in range(size):
        peers = [peer for peer in range(size) if peer != gpu]
        blocks = [
            Block(peer, peer, 0, [Step("s", ("i", peer), ("s", at)), Step("r", ("i", gpu), ("s", at), is_awaited=1)])
            for at, peer in enumerate(peers)
        ]
        sums = [Step("cpy", ("i", gpu), ("o", 0))]
        sums += [Step("re", ("s", at), ("o", 0), depends=(at, 1)) for at in range(len(peers))]
        gpus.append([*blocks, Block(-1, -1, 0, sums)])
    return Algorithm("reduce_scatter", size, gpus, head={"inplace": 0})


def exchange(size):
    """An alltoall out of place."""
    gpus = []
    for gpu in range(size):
        blocks = [
            Block(peer, peer, 0, [Step("s", ("i", peer), ("o", gpu)), Step("r", ("i", gpu), ("o", peer))])
            for peer in range(size) if peer != gpu
        ]
        gpus.append([*blocks, Block(-1, -1, 0, [Step("cpy", ("i", gpu), ("o", gpu))])])
    return Algorithm("alltoall", size, gpus, head={"inplace": 0})


def chain(collective, size, root):
    """A broadcast out of place from the root up, or a reduce down to it."""
    order = [(root + at) % size for at in range(size)]
    gpus = [[] for _ in order]
    for at, gpu in enumerate(order):
        above, below = (order[at + 1] if at < size - 1 else -1), (order[at - 1] if at else -1)
        if collective == "broadcast":
            kind = "s" if not at else "rcs" if at < size - 1 else "r"
            gpus[gpu] = [Block(above, below, 0, [Step(kind, ("i", 0), ("o", 0), 2)])]
            if not at:
                gpus[gpu][0].steps.append(Step("cpy", ("i", 0), ("o", 0), 2))
        else:
            kind = "s" if at == size - 1 else "rrs" if at else "rrc"
            gpus[gpu] = [Block(below, above, 0, [Step(kind, ("i", 0), ("o", 0), 2)])]
    return Algorithm(collective, 2, gpus, head={"inplace": 0})
