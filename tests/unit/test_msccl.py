"""`mpicoll verify --msccl`: algorithms in MSCCL's XML format are proved, and every mutant that is wrong is found."""

import json

import pytest

from mpicoll.cli import main
from mpicoll.errors import ArgumentError, ScheduleError
from mpicoll.verify import check_msccl
from tests.support.msccl import (
    Algorithm, Block, Step, all_pairs, chain, exchange, gathering_pairs, ring, scattered_sums,
)

RIGHT = {
    "ring": ring(4),
    "all pairs": all_pairs(4),
    "allgather in place": gathering_pairs(3),
    "allgather out of place": gathering_pairs(3, in_place=False),
    "reduce_scatter": scattered_sums(4),
    "alltoall": exchange(3),
    "broadcast": chain("broadcast", 4, 0),
    "reduce": chain("reduce", 4, 0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_algorithms_are_proved(name):
    proof = check_msccl(RIGHT[name].xml())
    assert proof.result
    assert proof.limit is None
    assert proof.calls == ("in place" if RIGHT[name].head["inplace"] else "out of place",)


def mutants(algorithm):
    """Changed copies of an algorithm, each with the place and the kind of its one change."""
    for gpu, block, at in algorithm.steps():
        def changed(change, gpu=gpu, block=block, at=at):
            copy = algorithm.copy()
            change(copy.gpus[gpu][block], at)
            return copy

        step = algorithm.gpus[gpu][block].steps[at]
        here = f"GPU {gpu}, threadblock {block}, step {at} ({step.type})"
        if step.type in ("s", "rrs", "rrc", "rrcs", "cpy", "re"):
            yield f"{here}: source", changed(_other_source)
        if step.type in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            yield f"{here}: target", changed(_other_target)
        if step.depends != (-1, -1) and step.type != "nop":
            yield f"{here}: dependency", changed(_no_dependency)
        if step.is_awaited:
            yield f"{here}: hasdep", changed(_untold)
        if step.type != "nop":
            yield f"{here}: count", changed(_other_count)
            yield f"{here}: left out", changed(_left_out)
        if step.type in ("r", "rcs", "rrcs"):
            yield f"{here}: other type", changed(_other_type)


def _other_source(block, at):
    buffer, first = block.steps[at].source
    block.steps[at].source = buffer, first + 1


def _other_target(block, at):
    buffer, first = block.steps[at].target
    block.steps[at].target = buffer, first + 1


def _no_dependency(block, at):
    block.steps[at].depends = -1, -1


def _untold(block, at):
    block.steps[at].is_awaited = 0


def _other_count(block, at):
    block.steps[at].count = 3 - block.steps[at].count


def _left_out(block, at):
    del block.steps[at]


def _other_type(block, at):
    block.steps[at].type = {"r": "rrc", "rcs": "rrcs", "rrcs": "rrs"}[block.steps[at].type]


#: mutants that are right: what they add goes into chunks that are received over before the end
EQUIVALENT = {
    "all pairs": {f"GPU {gpu}, threadblock 3, step {at} (re): count" for gpu in range(3) for at in (2, 3)},
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_mutant_is_found(name):
    tried, missed = 0, set()
    for what, mutant in mutants(RIGHT[name]):
        tried += 1
        try:
            check_msccl(mutant.xml())
        except (ScheduleError, ArgumentError):
            continue
        missed.add(what)
    assert tried > 8
    assert missed == EQUIVALENT.get(name, set())


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("end", ["send", "recv"])
def test_every_wrong_peer_is_found(name, end):
    for gpu, blocks in enumerate(RIGHT[name].gpus):
        for number, block in enumerate(blocks):
            peer = getattr(block, end)
            if peer < 0:
                continue
            mutant = RIGHT[name].copy()
            other = next(each for each in range(len(mutant.gpus)) if each not in (gpu, peer))
            setattr(mutant.gpus[gpu][number], end, other)
            with pytest.raises(ScheduleError):
                check_msccl(mutant.xml())


def test_steps_in_another_order_are_found():
    for gpu, _, at in RIGHT["ring"].steps():
        mutant = RIGHT["ring"].copy()
        steps = mutant.gpus[gpu][0].steps
        if at + 1 < len(steps):
            steps[at], steps[at + 1] = steps[at + 1], steps[at]
            with pytest.raises(ScheduleError):
                check_msccl(mutant.xml())


def wrong(algorithm):
    """The message about a wrong algorithm."""
    with pytest.raises(ScheduleError) as error:
        check_msccl(algorithm.xml())
    return str(error.value)


def test_what_is_wrong_is_named():
    offset = RIGHT["ring"].copy()
    offset.gpus[2][0].steps[6].target = "i", 2
    assert wrong(offset) == (
        "GPU 2: chunk 0 of the output is made of chunk 0 of GPU 2; expected chunk 0 of GPUs 0, 1, 2, 3"
    )
    lost = RIGHT["ring"].copy()
    del lost.gpus[1][0].steps[6]
    assert wrong(lost) == "GPU 0, threadblock 0, step 5 (rcs): its message is never received"
    twice = RIGHT["ring"].copy()
    twice.gpus[1][0].steps[1].type = "rrcs"
    assert check_msccl(twice.xml()).result  # stores a sum that is received over later
    twice.gpus[1][0].steps.insert(2, Step("re", ("i", 0), ("i", 0)))
    assert wrong(twice) == "GPU 1, threadblock 0, step 2 (re): chunk 0 of GPU 1 is added twice"


def test_deadlocks_are_named():
    stuck = exchange(2)
    for blocks in stuck.gpus:
        blocks[0].steps.reverse()
    assert wrong(stuck) == (
        "deadlock: GPU 0, threadblock 0, step 0 (r) waits for a message from GPU 1 on channel 0;"
        " GPU 1, threadblock 0, step 0 (r) waits for a message from GPU 0 on channel 0"
    )
    untold = all_pairs(2)
    untold.gpus[0][0].steps[1].is_awaited = 0
    assert "waits for the end of step 1 of threadblock 0, which never tells it (hasdep)" in wrong(untold)
    nobody = all_pairs(2)
    nobody.gpus[0][1].steps[0].depends = 7, 0
    assert "waits for the end of step 0 of threadblock 7" in wrong(nobody)


def test_a_wait_ends_with_a_later_step_that_is_told():
    """The interpreter tells no step of its own but the number of the last one."""
    late = all_pairs(2)
    late.gpus[0][0].steps[1].is_awaited = 0
    late.gpus[0][0].steps.insert(2, Step("cpy", ("s", 3), ("s", 4), is_awaited=1))
    late.gpus[0][0].steps.insert(2, Step("cpy", ("s", 0), ("s", 3)))
    late.gpus[0][0].steps[4].depends = 1, 0
    late.gpus[0][1].steps[0].depends = 0, 1
    assert check_msccl(late.xml()).result


def crossing(messages, count, protocol="Simple", head=()):
    """Two GPUs that send several messages to each other before they receive any."""
    chunks = messages * count
    gpus = []
    for gpu in range(2):
        sends = [Step("s", ("o", gpu * chunks + at * count), count=count) for at in range(messages)]
        receives = [
            Step("r", target=("o", (1 - gpu) * chunks + at * count), count=count) for at in range(messages)
        ]
        gpus.append([Block(1 - gpu, 1 - gpu, 0, sends + receives)])
    buffers = 2 * chunks, 2 * chunks, 0
    return Algorithm("allgather", 2 * chunks, gpus, protocol, {"inplace": 1, **dict(head)}, buffers)


@pytest.mark.parametrize("protocol, most", [("Simple", 2), ("LL", 8), ("LL128", 8)])
def test_connections_hold_so_many_messages(protocol, most):
    assert check_msccl(crossing(most, 1, protocol).xml()).messages == most
    message = wrong(crossing(most + 1, 1, protocol))
    assert message.startswith(f"where a connection holds {most} messages, as with {protocol}, deadlock: GPU 0,")
    assert f"room to send to GPU 1 on channel 0: {most} messages are not received" in message


def test_chunks_of_a_step_share_messages_where_vectors_are_short():
    # 4 chunks in 2 messages of 2 MiB: 2 chunks of 1 MiB in each
    assert check_msccl(crossing(1, 4).xml()).limit == 8 << 20
    assert check_msccl(crossing(1, 4, head={"maxBytes": 8 << 20}).xml()).limit is None
    message = wrong(crossing(1, 4, head={"maxBytes": 9 << 20}))
    assert message.startswith("with vectors of more than 8388608 bytes (the file allows 9437184), deadlock: GPU 0,")


def test_two_threadblocks_at_one_end_of_a_connection():
    shared = exchange(3)
    shared.gpus[0][1].send = 1
    assert wrong(shared) == (
        "GPU 0: threadblocks 0 and 1 both send to GPU 1 on channel 0, whose messages come in no certain order then"
    )


def test_a_message_is_an_order_too():
    """What comes back from another GPU comes after what was sent there."""
    there = [
        Block(1, -1, 0, [Step("s", ("o", 0))]), Block(-1, 1, 1, [Step("r", target=("o", 1))]),
        Block(-1, 1, 0, [Step("r", target=("s", 0), is_awaited=1)]),
    ]
    back = [Block(0, 0, 0, [Step("rcs", target=("o", 0))]), Block(0, -1, 1, [Step("s", ("o", 1))])]
    algorithm = Algorithm("allgather", 2, [there, back])
    assert check_msccl(algorithm.xml()).result
    there[2].steps[0].target = "o", 0  # the same value, after it was sent
    assert check_msccl(algorithm.xml()).result
    there[1].steps.append(Step("cpy", ("o", 0), ("s", 1)))
    assert wrong(algorithm).startswith("data race: GPU 0, threadblock ")


def test_a_step_that_copies_over_what_it_copies():
    shifted = Algorithm("custom", 4, [[Block(-1, -1, 0, [Step("cpy", ("o", 0), ("o", 1), 2)])]])
    assert wrong(shifted) == (
        "data race: GPU 0, threadblock 0, step 0 (cpy) reads chunks and writes some of them elsewhere"
    )


def test_a_copy_of_a_chunk_to_itself_may_undo_a_write():
    """It races with what is received there, not with what is sent from there."""
    right = gathering_pairs(3, in_place=False)
    assert check_msccl(right.xml()).result
    for chunk in (0, 1):
        beside = right.copy()
        beside.gpus[0].append(Block(-1, -1, 0, [Step("cpy", ("o", chunk), ("o", chunk))]))
        assert wrong(beside).startswith("data race: GPU 0, threadblock ")


def test_calls_in_place_and_out_of_place():
    both = gathering_pairs(3, in_place=False)
    both.head = {"inplace": 1, "outofplace": 1}
    assert check_msccl(both.xml()).calls == ("in place", "out of place")
    only_in_place = gathering_pairs(3)
    only_in_place.head = {"inplace": 1, "outofplace": 1}
    assert wrong(only_in_place) == "GPU 0, threadblock 0, step 0 (s): it reads chunk 0 of the output, where nothing was put"
    overwriting = scattered_sums(2)
    overwriting.gpus[0][1].steps.append(Step("cpy", ("o", 0), ("i", 0)))
    overwriting.gpus[0][0].steps[1].is_awaited = 1
    assert wrong(overwriting).endswith("it writes chunk 0 of the input, which a call out of place leaves as it is")


def test_reduce_scatter_in_place():
    """The output is the GPU's own chunk of the input."""
    in_place = scattered_sums(3)
    in_place.head = {"inplace": 1}
    assert check_msccl(in_place.xml()).calls == ("in place",)
    assert check_msccl(in_place.xml().replace("reduce_scatter", "reducescatter")).result


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", range(3))
def test_the_root_is_found(collective, root):
    assert check_msccl(chain(collective, 3, root).xml()).root == root


def test_sums_in_another_order_have_maybe_other_bits():
    assert check_msccl(all_pairs(4).xml()).same_bits
    assert check_msccl(ring(5).xml()).same_bits
    gpus = []
    for gpu in range(3):
        peers = [peer for peer in range(3) if peer != gpu]
        blocks = [
            Block(peer, peer, 0, [Step("s", ("i", 0)), Step("r", target=("s", at), is_awaited=1)])
            for at, peer in enumerate(peers)
        ]
        waits = [Step("nop", count=0, depends=(0, 1)), Step("re", ("s", 0), ("i", 0), depends=(1, 1))]
        gpus.append([*blocks, Block(-1, -1, 0, [*waits, Step("re", ("s", 1), ("i", 0))])])
    assert not check_msccl(Algorithm("allreduce", 1, gpus).xml()).same_bits


def test_an_unknown_collective_has_an_order_and_no_result():
    unknown = exchange(3)
    unknown.collective = "custom"
    proof = check_msccl(unknown.xml())
    assert not proof.result
    unknown.gpus[0][0].steps[1].target = "o", 2
    assert wrong(unknown).startswith("data race: ")


def test_chunks_that_gpus_cannot_share():
    uneven = exchange(3)
    uneven.chunks = 4
    assert "no multiple of 3" in wrong(uneven)


MALFORMED = [
    ("<algo", "it is not XML: "),
    (b"\xff\xfe", "it is not XML: "),
    ("<graph/>", "expected <algo ...> as MSCCL's files have, got <graph>"),
    ("<algo/>", "the algorithm: the attribute 'ngpus' is missing"),
    (('ngpus="3"', 'ngpus="three"'), "the algorithm: expected a whole number for 'ngpus', got 'three'"),
    (('ngpus="3"', 'ngpus="3000000000"'), "the algorithm: expected GPUs 0 to 2999999999, each once, got 0, 1, 2"),
    (('nchunksperloop="3"', 'nchunksperloop="2000000000"'), "the algorithm: 3 GPUs with 2000000000 chunks each"),
    (('ngpus="3"', 'ngpus="4"'), "the algorithm: expected GPUs 0 to 3, each once, got 0, 1, 2"),
    (('proto="LL"', 'proto="LLL"'), "the algorithm: expected one of Simple, LL, LL128 for 'proto', got 'LLL'"),
    (('inplace="0"', 'inplace="2"'), "the algorithm: expected 0 to 1 for 'inplace', got 2"),
    (('inplace="0"', 'inplace="0" outofplace="0"'), "the algorithm: it is for calls neither in place nor out of place"),
    (('<tb id="1"', '<tb id="7"'), "GPU 0: expected threadblocks 0, 1, 2, ..., each once"),
    (('<tb id="0" send="1"', '<tb id="0" send="0"'), "GPU 0, threadblock 0: it sends to, or receives from, its own GPU"),
    (('send="1" recv="1"', 'send="-1" recv="1"'), "GPU 0, threadblock 0: step 0 (s) needs a peer, but there is none"),
    (('chan="0"', 'chan="1"'), "GPU 0, threadblock 0: expected 0 to 0 for 'chan', got 1"),
    (('<step s="1"', '<step s="2"'), "GPU 0, threadblock 0: expected step 1, got step 2"),
    (('type="r"', 'type="recv"'), "GPU 0, threadblock 0, step 1: expected one of s, r, rcs, "),
    (('dstbuf="o" dstoff="1"', 'dstbuf="o" dstoff="99"'), "GPU 0, threadblock 0, step 1: 1 chunks from 99 on are not"),
    (('cnt="1"', 'cnt="0"'), "GPU 0, threadblock 0, step 0: expected 1 or more for 'cnt', got 0"),
    (('depid="-1"', 'depid="7"'), "GPU 0, threadblock 0, step 0: it depends on threadblock 7 (depid), but on no"),
    (('type="cpy"', 'type="nop"'), "GPU 0, threadblock 2, step 0: it is a nop that depends on nothing"),
    (("</tb>", "</gpu>"), "it is not XML: "),
    (('<step s="0"', '<op/><step s="0"'), "GPU 0, threadblock 0: expected <step>, got <op>"),
]


@pytest.mark.parametrize("change, message", MALFORMED)
def test_malformed_files_get_one_clear_error(change, message):
    text = exchange(3).xml().replace(*change, 1) if isinstance(change, tuple) else change
    with pytest.raises(ArgumentError) as error:
        check_msccl(text)
    assert str(error.value).startswith(message)


def test_steps_on_too_many_chunks_are_refused_before_they_are_run():
    long = exchange(3)
    long.buffers = (2 * 10**9,) * 3
    long.gpus[0][0].steps[0].count = 10**9
    with pytest.raises(ArgumentError, match=r"its steps on 1000000\d+ chunks \(cnt\) are too many to prove"):
        check_msccl(long.xml())


def test_a_nop_belongs_to_a_step_that_waits():
    alone = all_pairs(3)
    alone.gpus[0][2].steps[1].depends = -1, -1
    with pytest.raises(ArgumentError, match="step 1 follows a nop, so it must depend on a step as well"):
        check_msccl(alone.xml())


def run(capsys, *arguments):
    """Status, output and errors of `mpicoll verify --msccl`."""
    try:
        status = main(["verify", *map(str, arguments)])
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


def test_the_command(tmp_path, capsys):
    right, bad, broken, unknown = (tmp_path / f"{name}.xml" for name in ("right", "bad", "broken", "unknown"))
    right.write_text(ring(4).xml())
    status, output, _ = run(capsys, "--msccl", right)
    assert status == 0
    assert output.splitlines()[0] == f"{right}: proven, allreduce in place, 4 GPUs, 28 steps"
    mutant = ring(4)
    mutant.gpus[0][0].steps[0].source = "i", 1
    bad.write_text(mutant.xml())
    broken.write_text("<algo>")
    unknown.write_text(ring(4).xml().replace("allreduce", "custom"))
    assert run(capsys, "--msccl", unknown)[0] == 0
    status, output, _ = run(capsys, "--msccl", right, bad, broken, unknown, "--json", tmp_path / "proofs.json")
    assert status == 1
    lines = output.splitlines()
    assert lines[1].startswith(f"{bad}: WRONG: GPU ")
    assert lines[2].startswith(f"{broken}: MALFORMED: it is not XML: ")
    assert lines[3].startswith(f"{unknown}: result unknown, custom in place, 4 GPUs, 28 steps, no deadlock and no data race, ")
    assert lines[4].startswith("1 of 4 files proven in ")
    results = json.loads((tmp_path / "proofs.json").read_text())["files"]
    assert [result["outcome"] for result in results] == ["proven", "wrong", "malformed", "result unknown"]


def test_the_command_says_what_it_takes(tmp_path, capsys):
    status, _, error = run(capsys, "--msccl", tmp_path / "none.xml")
    assert status == 2
    assert "cannot read" in error
    status, _, error = run(capsys, "ring", "--msccl", tmp_path / "none.xml")
    assert status == 2
    assert "neither collectives, algorithms nor --file" in error
