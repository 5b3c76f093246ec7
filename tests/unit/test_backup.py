"""Where copies of shards lie, and where the living take up when ranks have died."""

import pytest

from mpicoll.train.parallel.backup import Backup, BackupStatus, ShardsLost, holders


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 2, 3), (0, 0, 0, 1), (0, 1, 0, 1, 2), (0, 0, 0), (0, 0)])
def test_a_copy_lies_on_another_node_where_there_is_one(nodes):
    for rank, holder in enumerate(holders(nodes)):
        assert holder != rank
        assert nodes[holder] != nodes[rank] or len(set(nodes)) == 1


def level(size, divided=True, before=None):
    """How a backup of that many ranks, of one node, plans; it has no training."""
    backup = object.__new__(Backup)
    facts = {"_divided": divided, "size": size, "holders": holders((0,) * size), "before": before}
    vars(backup).update(facts)
    return backup.plan


def known(rank, newest, held, secure=True, whole=True, copied=True):
    return BackupStatus(rank, newest, held, secure, whole, copied)


def test_the_newest_that_all_have_had():
    # rank 1 of three died; its copy is on rank 2, which has that of generation 5 and is one step ahead
    plan = level(3)([known(0, 5, 5), known(2, 6, 5)])
    assert plan.generation == 5 and plan.servers == {0: 0, 1: 1, 2: 1} and not plan.is_open


def test_where_every_rank_has_everything_the_newest_is_given_to_the_others():
    assert level(3, divided=False)([known(0, 5, 0), known(2, 6, 0)]) == (6, {2: 1}, False)


def test_a_base_that_is_open_is_what_the_living_have_now():
    for secure in (False, True):  # the holder of the dead rank's copy may have brought it to the base, or not yet
        plan = level(3)([known(0, 4, 4, secure=False), known(2, 4, 4, secure=secure)])
        assert plan == (4, {0: 0, 1: 1, 2: 1}, True)


def test_while_ranks_recover_those_before_them_know_more():
    assert level(3, before="those of four ranks")([known(0, 0, 0), known(2, 0, 0, secure=False)]) is None


def test_of_state_that_was_changed_between_two_fits_there_is_no_earlier_one():
    with pytest.raises(ShardsLost, match="rank 1 died before the first step of this fit.* optimizer state had been changed"):
        level(3)([known(0, 4, 4, secure=False, copied=False), known(2, 4, 4, secure=False)])
    assert level(3)([known(0, 4, 4, secure=False, copied=False), known(2, 4, 4)]).is_open  # its holder has the change


def test_a_checkpoint_that_was_being_read_is_read_again():
    with pytest.raises(ShardsLost, match="rank 1 died before .* still to come from a checkpoint"):
        level(3)([known(0, 4, 4, secure=False, whole=False), known(2, 4, 4, secure=False)])


def test_a_shard_that_was_lost_with_its_copy_is_named():
    with pytest.raises(ShardsLost, match="of rank 1 was lost with its copy"):
        level(4)([known(0, 5, 5), known(3, 5, 5)])
