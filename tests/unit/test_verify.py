"""The verifier: what it counts, and that it refuses every schedule that is wrong."""

from itertools import pairwise

import pytest

import mpicoll
from mpicoll import ArgumentError, ScheduleError, algorithms
from mpicoll.algorithms.gather import linear
from mpicoll.schedule import MAX_MESSAGE_BYTES, Copy, Input, Output, Recv, Reduce, Scratch, Send, bounds
from mpicoll.verify import Case, cases, check
from mpicoll.verify.registering import prove_once

pytestmark = pytest.mark.usefixtures("registry")


def exchange(rank, size):
    """An allreduce of two ranks."""
    received = Scratch("received", 0, size)
    pair = (Input(0, size), received) if rank == 0 else (received, Input(0, size))
    yield Send(1 - rank, Input(0, size)), Recv(1 - rank, received), Reduce(*pair, Output(0, size))


def chain(rank, size):
    """An allreduce at any size, in rank order: up the chain and down again."""
    received, total = Scratch("received", 0, size), Output(0, size) if rank else Input(0, size)
    if rank:
        yield Recv(rank - 1, received), Reduce(received, Input(0, size), total)
    if rank < size - 1:
        yield Send(rank + 1, total)
        yield Recv(rank + 1, Output(0, size))
    if rank:
        yield Send(rank - 1, Output(0, size))


# ---- what is counted


def test_cost_of_a_schedule():
    cost = mpicoll.verify.check("allreduce", exchange, 2, count=10, itemsize=4)
    assert cost == (1, 1, 40, 40, 40, True, ((1, 40, 40, 40),) * 2, True, 0)
    assert check("allreduce", chain, 3)[:6] == (4, 2, 6, 6, 3, True)


def test_a_round_with_two_peers_counts_twice():
    def star(rank, size):
        if rank:
            yield Send(0, Input(0, size))
            yield Recv(0, Output(0, size))
        else:
            yield Recv(1, Scratch("a", 0, size)), Recv(2, Scratch("b", 0, size)), \
                Reduce(Input(0, size), Scratch("a", 0, size), Scratch("a", 0, size)), \
                Reduce(Scratch("a", 0, size), Scratch("b", 0, size), Output(0, size))
            yield Send(1, Output(0, size)), Send(2, Output(0, size))

    cost = check("allreduce", star, 3)
    assert (cost.rounds, cost.messages, cost.ordered) == (4, 2, True)


@pytest.mark.parametrize("count", (0, 1, 5, 7, 101))
def test_bytes_of_uneven_and_of_missing_elements(count):
    size, edges = 7, bounds(count, 7)
    cost = check("allreduce", algorithms.find("allreduce", "ring").generator, size, count=count, itemsize=2)
    share = [end - start for start, end in pairwise(edges)]
    for rank, figures in enumerate(cost.ranks):
        kept = share[rank] + share[(rank + 1) % size]  # never sent in the first half, in the second
        assert figures.bytes_sent == 2 * (2 * count - kept)
        assert figures.bytes_reduced == 2 * (count - share[(rank - 1) % size])
        empty = (share * 2).count(0) - (share[rank] == 0) - (share[(rank + 1) % size] == 0)
        assert figures.messages == 12 - empty
    assert sum(rank.bytes_sent for rank in cost.ranks) == sum(rank.bytes_received for rank in cost.ranks)


def test_messages_are_cut_below_one_gibibyte():
    count, itemsize = 3 * 2**30 + 1, 8
    cost = check("bcast", algorithms.find("bcast", "linear").generator, 2, count=count, itemsize=itemsize)
    assert cost.bytes_sent == count * itemsize and MAX_MESSAGE_BYTES < 2**30
    assert cost.messages == -(-count // (MAX_MESSAGE_BYTES // itemsize))


def test_cases_are_every_root_of_few_ranks_and_some_of_many():
    bcast = algorithms.find("bcast", "pipeline")
    assert sorted({root for _, root, _, _ in cases(bcast, [9])}) == list(range(9))
    assert sorted({root for _, root, _, _ in cases(bcast, [33])}) == [0, 16, 32]
    assert {blocks for _, _, blocks, nodes in cases(bcast, [9]) if not nodes} == {1, 2, 5, 9}
    assert list(cases(algorithms.find("allreduce", "circulant"), [40])) == [(40, 0, 40, None)]
    placed = {nodes for _, _, _, nodes in cases(algorithms.find("allreduce", "hierarchical"), [6])}
    assert {None, tuple(range(6)), (0, 0, 0, 1, 1, 1), (0, 1, 0, 1, 0, 1)} < placed


def test_cases_leave_out_nodes_that_change_nothing_and_above_16_ranks_take_them_in_turn():
    ring, hierarchical = algorithms.find("allreduce", "ring"), algorithms.find("allreduce", "hierarchical")
    assert [nodes for _, _, _, nodes in cases(ring, [6])] == [None, (0, 1, 0, 1, 0, 1), (0, 1, 0, 2, 2, 0)]
    taken = [[nodes for _, _, _, nodes in cases(hierarchical, [size])] for size in range(20, 25)]
    assert all(len(nodes) == 2 and nodes[0] is None for nodes in taken)
    assert [max(nodes[1]) for nodes in taken] == [19, 6, 7, 5, 2]


# ---- single mistakes, and what is said of them


def refused(collective, generator, size, message, **options):
    with pytest.raises(ScheduleError, match=message):
        check(collective, generator, size, **options)


def test_two_ranks_that_both_wait_first():
    def both_receive(rank, size):
        yield Recv(1 - rank, Scratch("received", 0, size))
        yield Send(1 - rank, Input(0, size))

    message = r"deadlock: rank 0 waits in round 1 \(receive from 1\); rank 1 waits"
    refused("allreduce", both_receive, 2, message)


def test_two_ranks_whose_blocking_sends_wait_for_each_other():
    def both_send(rank, size):
        yield Send(1 - rank, Input(0, size))
        yield Recv(1 - rank, Scratch("received", 0, size))

    refused("allreduce", both_send, 2, r"deadlock: rank 0 waits in round 1 \(send to 1\); rank 1 waits")


def test_a_ring_of_blocking_sends():
    def around(rank, size):
        yield Copy(Input(rank), Output(rank))
        for t in range(size - 1):
            yield Send(rank + 1, Output(rank - t))
            yield Recv(rank - 1, Output(rank - t - 1))

    refused("allgather", around, 5, "deadlock")


def test_a_receive_that_lands_on_what_is_sent():
    def careless(rank, size):
        yield Copy(Input(0, size), Output(0, size))
        yield Send(1 - rank, Output(0, size)), Recv(1 - rank, Output(0, size))

    refused("allreduce", careless, 2, "received into while the round reads")


def test_two_receives_that_land_on_one_another():
    def careless(rank, size, root):
        for _ in range(0 if rank == root else 1):
            yield Recv(root, Output(0, size)), Recv(root, Output(1, 1))
        if rank == root:
            yield Send(1 - rank, Output(0, size)), Send(1 - rank, Output(1))

    refused("bcast", careless, 2, "received into while the round reads or receives it")


def test_what_only_in_place_is_wrong():
    def overwrites(rank, size):
        yield Send(1 - rank, Input(0, size)), Recv(1 - rank, Output(0, size))
        yield Reduce(*sorted([Input(0, size), Output(0, size)], reverse=rank == 1), Output(0, size))

    refused("allreduce", overwrites, 2, r"\(in place\).*received into while")


def test_the_input_is_read_only():
    def into_input(rank, size):
        yield Send(1 - rank, Input(0, size)), Recv(1 - rank, Scratch("r", 0, size)), \
            Reduce(Input(0, size), Scratch("r", 0, size), Input(0, size))

    refused("allreduce", into_input, 2, "input is read-only")


def test_a_rank_without_output_may_not_write_there():
    def everywhere(rank, size, root):
        yield Send(1 - rank, Input(0, size)), Recv(1 - rank, Output(0, size))

    refused("reduce", everywhere, 2, "output memory for other blocks only")


def test_ranks_that_sum_in_different_orders():
    def own_first(rank, size):
        yield Send(1 - rank, Input(0, size)), Recv(1 - rank, Scratch("r", 0, size)), \
            Reduce(Input(0, size), Scratch("r", 0, size), Output(0, size))

    refused("allreduce", own_first, 2, "another order than on other ranks: other bits")


def test_a_contribution_that_is_missing_or_there_twice():
    refused("allreduce", lambda rank, size: iter([Copy(Input(0, size), Output(0, size))]), 2,
            r"block 0 at the end is made of ranks \[0\], expected ranks \[0, 1\]")

    def twice(rank, size):
        yield Reduce(Input(0), Input(0), Output(0))

    refused("allreduce", twice, 2, "the contribution of rank 0 is counted twice")


def test_a_message_nobody_receives_and_messages_to_oneself():
    refused("allgather", lambda rank, size: iter([Send(rank, Input(rank))]), 2, "the rank itself")
    refused("allgather", lambda rank, size: iter([Recv(rank, Output(rank))]), 2, "the rank itself")
    refused("allgather", lambda rank, size: iter([Send(rank + 1, Input(rank))] if rank == 0 else ()), 2, "deadlock")


def test_other_blocks_than_the_receiver_expects():
    refused("allreduce", lambda rank, size: iter([(Send(1 - rank, Input(rank)), Recv(1 - rank, Scratch("r", 0)))]), 2,
            "sends blocks .* but rank . expects")


def test_ordered_is_proved_where_it_is_claimed():
    ring = algorithms.find("allreduce", "ring").generator
    assert not check("allreduce", ring, 4).ordered
    refused("allreduce", ring, 4, "declared ordered", ordered=True)


def test_a_generator_that_fails_or_yields_nonsense():
    for rounds_of in ([3], [None], [Send(1, 0)], [Send(0.5, Input(0))], [Send(1, Input(0.5))], ["Send"], [(Input(0),)]):
        refused("allreduce", lambda rank, size, steps=rounds_of: iter(steps), 3, "the generator of rank 0 fails")
    fails = "rank 0 fails at .*test_verify.py:[0-9]+: ZeroDivisionError"
    refused("allreduce", lambda rank, size: iter(()) if rank else 1 // 0, 3, fails)
    refused("allreduce", lambda rank, size: None, 3, "the generator of rank 0 fails")
    refused("allreduce", lambda rank, size: iter([Send(1, Input(0, -1))]), 3, "more or fewer blocks")
    refused("allreduce", lambda rank, size: iter([Send(rank + 1, Input(0, 9))]), 3, "more or fewer blocks")


def test_arguments_that_make_no_sense():
    for options in ({"size": 0}, {"size": 2, "root": 2}, {"size": 2, "root": -1}, {"size": 2, "blocks": -3}):
        with pytest.raises(ArgumentError):
            check("allreduce", exchange, **options)
    with pytest.raises(ArgumentError, match="multiple of 4 blocks, got 6"):
        check("allgather", algorithms.find("allgather", "ring").generator, 4, blocks=6)
    with pytest.raises(ArgumentError, match="unknown collective 'allsum'; there are: allreduce"):
        check("allsum", exchange, 2)


# ---- register


def test_a_registered_algorithm_is_found_by_its_name():
    mpicoll.register("allreduce", "chain", chain)
    assert "chain" in mpicoll.list_algorithms("allreduce")
    found = algorithms.find("allreduce", "chain")
    assert found.generator is chain and found.ordered and found.blocks is None


@pytest.mark.slow
def test_generators_that_take_blocks_are_pipelines():
    def shift(rank, size, root, blocks):
        for block in range(blocks):
            if rank != root:
                yield Recv(rank - 1, Output(block))
            if (rank + 1 - root) % size:
                yield Send(rank + 1, Output(block))

    mpicoll.register("bcast", "shift", shift)
    assert algorithms.find("bcast", "shift").vector_blocks(5, segments=12) == 12


def forgetful(rank, size, root, blocks):
    """A pipeline that forgets its last segment from ten segments on."""
    place = (rank - root) % size
    for block in range(blocks if blocks < 10 else blocks - 1):
        if place > 0:
            yield Recv(rank - 1, Output(block))
        if place < size - 1:
            yield Send(rank + 1, Output(block))


def test_a_case_that_registration_has_not_proved_is_proved_before_its_first_call():
    mpicoll.register("bcast", "forgetful", forgetful, max_size=3)
    own = algorithms.find("bcast", "forgetful")
    prove_once(own, Case(3, 0, 9, None))
    with pytest.raises(ScheduleError, match="bcast forgetful, 3 ranks, root 0, 10 blocks: .*nothing was sent"):
        prove_once(own, Case(3, 0, 10, None))
    assert own.vector_blocks(3, segments=10**6) == algorithms.registry.MOST_OWN_SEGMENTS
    assert not algorithms.find("bcast", "pipeline").source


def canonical_at_two(rank, size):
    """Rank 0 adds all contributions, the last ranks first."""
    whole, other = Output(0, size), Scratch("other", 0, size)
    if rank:
        yield Send(0, Input(0, size))
        yield Recv(0, whole)
        return
    yield Copy(Input(0, size), whole)
    for peer in range(size - 1, 0, -1):
        yield Recv(peer, other), Reduce(whole, other, whole)
    for peer in range(1, size):
        yield Send(peer, whole)


def test_an_order_that_holds_at_few_ranks_is_not_taken_for_granted_at_more():
    mpicoll.register("allreduce", "canonical_at_two", canonical_at_two, max_size=2)
    with pytest.raises(ScheduleError, match="order.*max_size=3 or more"):
        prove_once(algorithms.find("allreduce", "canonical_at_two"), Case(3, 0, 3, None))
    mpicoll.register("allreduce", "any_order", lambda rank, size: canonical_at_two(rank, size), max_size=3)
    prove_once(algorithms.find("allreduce", "any_order"), Case(4, 0, 4, None))


def test_a_generator_that_takes_nodes_is_proved_with_nodes():
    def careless(rank, size, nodes=None):
        yield from () if nodes else chain(rank, size)

    with pytest.raises(ScheduleError, match="careless, 2 ranks.*nodes"):
        mpicoll.register("allreduce", "careless", careless, max_size=2)


def test_folded_generators_are_not():
    doubling = algorithms.find("allgather", "doubling").generator
    mpicoll.register("allgather", "mine", doubling)
    assert algorithms.find("allgather", "mine").blocks is None


def test_register_may_say_how_many_blocks():
    mpicoll.register("bcast", "star", algorithms.find("bcast", "linear").generator, blocks=lambda size: 1)
    assert algorithms.find("bcast", "star").vector_blocks(9) == 1


def test_nothing_wrong_is_registered():
    with pytest.raises(ScheduleError, match="allreduce exchange, 3 ranks, root 0"):
        mpicoll.register("allreduce", "exchange", exchange)
    assert "exchange" not in mpicoll.list_algorithms("allreduce")


def test_what_cannot_be_registered():
    with pytest.raises(ArgumentError, match="already has an algorithm 'ring'"):
        mpicoll.register("allreduce", "ring", chain)
    with pytest.raises(ArgumentError, match="already has an algorithm 'native'"):
        mpicoll.register("allreduce", "native", chain)
    with pytest.raises(ArgumentError, match="unknown collective"):
        mpicoll.register("sum", "mine", chain)
    with pytest.raises(ArgumentError, match=r"bcast needs a generator\(rank, size, root\)"):
        mpicoll.register("bcast", "mine", chain)
    with pytest.raises(ArgumentError, match=r"allreduce needs a generator\(rank, size\)"):
        mpicoll.register("allreduce", "mine", None)


def token_ring(rank, size):
    """Legal, but rank 0 receives in its first round what depends on what it sends in it."""
    if rank == 0:
        yield Send(1, Input(0)), Recv(size - 1, Scratch("sum", 0))
        yield Copy(Scratch("sum", 0), Output(0)), Send(1, Scratch("sum", 0))
        return
    yield Recv(rank - 1, Scratch("sum", 0)), Reduce(Scratch("sum", 0), Input(0), Scratch("sum", 0))
    yield Send(rank + 1, Scratch("sum", 0))
    yield Recv(rank - 1, Output(0))
    if rank < size - 1:
        yield Send(rank + 1, Output(0))


def test_a_round_whose_transfers_wait_for_each_other_is_not_cut():
    mpicoll.register("allreduce", "token_ring", token_ring, blocks=lambda size: 1)
    assert not algorithms.find("allreduce", "token_ring").cuttable
    mpicoll.register("allreduce", "chain", chain)
    assert algorithms.find("allreduce", "chain").cuttable


def test_what_is_declared_cuttable_must_be():
    entry = algorithms.Algorithm("allreduce", "token_ring", token_ring, blocks=lambda size: 1)
    algorithms.add(entry)
    with pytest.raises(ScheduleError, match="wait for each other when messages are cut"):
        check("allreduce", token_ring, 3)


def awkward(rank, size, root):
    """Legal, but the root reads rank 2's message only when rank 1's is there, which waits for rank 2, whose message waits."""
    if size != 3 or root:
        yield from linear(rank, size, root)
    elif rank == 0:
        yield Copy(Input(0), Output(0)), Recv(1, Output(1)), Recv(2, Output(2))
    elif rank == 1:
        yield (Recv(2, Scratch("nothing", 2)),)
        yield (Send(0, Input(1)),)
    else:
        yield (Send(0, Input(2)),)
        yield (Send(1, Input(2)),)


def test_what_would_wait_for_ever_is_not_read_late():
    """It stays with MPI inside a node."""
    mpicoll.register("gather", "awkward", awkward, max_size=4)
    assert not algorithms.find("gather", "awkward").read_late
    algorithms.add(algorithms.Algorithm("gather", "late", lambda rank, size, root: awkward(rank, size, root)))
    with pytest.raises(ScheduleError, match="read late"):
        check("gather", algorithms.find("gather", "late").generator, 3)
    mpicoll.register("allreduce", "chain", chain)
    assert algorithms.find("allreduce", "chain").read_late


def test_blocks_of_any_sizes_are_for_those_that_move_them_straight():
    """A block that waits with another rank lies where one of another size belongs."""
    straight, stored = (algorithms.find("alltoall", word).generator for word in ("pairwise", "bruck"))
    mpicoll.register("alltoall", "straight", straight)
    mpicoll.register("alltoall", "stored", stored, max_size=5)
    assert not algorithms.find("alltoall", "straight").equal_blocks and algorithms.find("alltoall", "stored").equal_blocks
    generator = lambda rank, size: stored(rank, size)  # noqa: E731  # declared of this one
    algorithms.add(algorithms.Algorithm("alltoall", "wrongly", generator))
    with pytest.raises(ScheduleError, match="declared they may have any sizes"):
        check("alltoall", generator, 3)


def test_blocks_that_are_exchanged_must_be_the_right_ones():
    def backwards(rank, size):
        yield Copy(Input(rank), Output(rank))
        for step in range(1, size):
            yield Send(rank + step, Input(rank - step)), Recv(rank - step, Output(rank - step))

    with pytest.raises(ScheduleError, match="block 1 at the end is made of block 2 of rank 1, expected block 0 of rank 1"):
        check("alltoall", backwards, 3)
