"""Where copies of shards lie, and where the living take up when ranks have died."""

from types import SimpleNamespace

import pytest

from mpicoll.train.parallel.generations import Generations, Known, ShardsLost, holders


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 2, 3), (0, 0, 0, 1), (0, 1, 0, 1, 2), (0, 0, 0), (0, 0)])
def test_a_copy_lies_on_another_node_where_there_is_one(nodes):
    for rank, holder in enumerate(holders(nodes)):
        assert holder != rank
        assert nodes[holder] != nodes[rank] or len(set(nodes)) == 1


def level(size, nodes=None, divided=True, first=0, again=False):
    made = SimpleNamespace(_divided=divided, first=first, size=size, holders=holders(nodes or (0,) * size), _again=again)
    return lambda everyone: Generations.plan(made, everyone)


def test_the_newest_that_all_have_had():
    # rank 1 of three died; its copy is on rank 2, which has that of generation 5 and is one step ahead
    plan = level(3)([Known(0, 0, 5, 5), Known(2, 0, 6, 5)])
    assert plan.generation == 5 and plan.servers == {0: 0, 1: 1, 2: 1}


def test_where_every_rank_has_everything_the_newest_is_given_to_the_others():
    assert level(3, divided=False)([Known(0, 0, 5, None), Known(2, 0, 6, None)]) == (6, {2: 1})


def test_before_all_have_copies_there_is_none():
    assert level(3, first=4)([Known(0, 4, 4, 4), Known(2, 4, None, None)]) is None
    assert level(3, first=4)([Known(0, 4, 4, 4), Known(2, 4, 4, None)]) is None


def test_of_state_that_was_changed_between_two_fits_there_is_no_earlier_one():
    with pytest.raises(ShardsLost, match="rank 1 died before the first step of this fit"):
        level(3, first=4, again=True)([Known(0, 4, 4, 4), Known(2, 4, 4, None)])


def test_a_shard_that_was_lost_with_its_copy_is_named():
    with pytest.raises(ShardsLost, match="of rank 1 was lost with its copy"):
        level(4)([Known(0, 0, 5, 5), Known(3, 0, 5, 5)])
