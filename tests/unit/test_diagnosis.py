"""What `mpicoll diagnose` says of states made by hand: its last line names the rank that is to blame, and no other."""

import pytest

from mpicoll.reports import diagnose

NOW = 1000.0


def call(number, text="Allreduce of 80 bytes", seconds=3.0, **more):
    return {"number": number, "call": text, "where": "", "site": "a.py:1", "seconds": seconds, "peer": None, **more}


def communicator(calls, *under_way, name="w.0", ranks=(0, 1, 2), past=()):
    return {"name": name, "rank": 0, "ranks": list(ranks), "calls": calls, "broken": "", "under_way": list(under_way),
            "past": list(past)}  # fmt: skip


def state(rank, *communicators, **more):
    return {"schema": 1, "rank": rank, "size": 3, "host": f"node{rank}", "pid": 100 + rank, "time": NOW, "at": "a.py:9",
            "ended": False, "failed": "", "last_words": False, "heard": [], "unheard": [], "died": None,
            "communicators": list(communicators), **more}  # fmt: skip


def idle(rank, calls=4, **more):
    return state(rank, communicator(calls, past=[{"number": calls, "call": "Bcast of 80 bytes", "seconds": 3.0}]), **more)


def waiting(rank, number=5, text="Allreduce of 80 bytes", seconds=3.0, state_=None, **more):
    return state(rank, communicator(number, call(number, text, seconds, **more)), **state_ or {})


def verdict(*states, ranks=range(3), **more):
    return diagnose(states, ranks, **more).splitlines()[-1]


def test_a_rank_that_makes_no_call():
    said = diagnose([waiting(0), idle(1), waiting(2)], range(3))
    assert said.splitlines()[-1] == "So the others wait for rank 1, which made no such call."
    assert "Rank 1 is in no collective but at a.py:9; its last was call 4" in said
    assert "Ranks 0, 2 in call 5 of communicator w.0: Allreduce of 80 bytes at a.py:1." in said


def test_the_end_of_a_chain_of_peers():
    """Rank 2 is in the call too, but in none of its rounds."""
    said = verdict(waiting(0, peer=1), waiting(1, peer=2), waiting(2))
    assert said == "So the others wait for rank 2, which waits for nobody: slow, stuck, or gone."


def test_a_rank_that_is_busy_in_the_middle_of_a_call_waits_for_nobody():
    """An op of the user's, or a handler of signals, that does not come back."""
    states = waiting(0, peer=1), waiting(1, peer=0, where="round 2 of 4", inside="a.py:7"), waiting(2, peer=1)
    said = diagnose(states, range(3))
    assert said.splitlines()[-1].startswith("So the others wait for rank 1,")
    assert "rank 1: round 2 of 4; busy in the user's own code at a.py:7" in said


def test_a_peer_that_has_the_call_behind_it_is_not_waited_for():
    said = verdict(waiting(0, peer=1), waiting(1, 6, peer=0), waiting(2, 6, peer=0))
    assert said.startswith("So the others wait for rank 0,")


def test_a_call_that_works_does_not_wait():
    """The last report of a rank that was stopped in the middle of its work."""
    said = verdict(waiting(0, peer=1), waiting(1, peer=2, seconds=0.001), waiting(2, peer=1))
    assert said.startswith("So the others wait for rank 1,")


def test_a_non_blocking_call_that_is_behind():
    late = state(0, communicator(6, call(5), call(6)))
    assert verdict(late, waiting(1, 6), waiting(2, 6)).startswith("So the others wait for rank 0,")


def test_a_chain_through_a_part_of_the_job():
    """Rank 0 waits in the world for rank 1, and that in a part of it for rank 2."""
    part = {"name": "w.1", "ranks": (1, 2)}
    states = [state(0, communicator(5, call(5))), state(1, communicator(4), communicator(2, call(2), **part)),
              state(2, communicator(4), communicator(1, **part))]  # fmt: skip
    assert verdict(*states) == "So the others wait for rank 2, which made no such call."


def test_the_network():
    assert verdict(*map(waiting, range(3))).startswith("All ranks are in the same call: the network")


@pytest.mark.parametrize("peer", [None, 1])
def test_different_calls_of_one_number(peer):
    said = verdict(waiting(0, peer=peer), waiting(1, text="Bcast of 80 bytes"), waiting(2))
    assert said.startswith("So ranks are in different calls")


def test_a_chain_that_bites_its_tail():
    states = [state(0, communicator(5, call(5)), communicator(1, name="w.1")),
              state(1, communicator(4), communicator(2, call(2), name="w.1")),
              state(2, communicator(4), communicator(2, call(2), name="w.1"))]  # fmt: skip
    assert verdict(*states).startswith("So ranks are in different calls")


# Who does not answer.


def test_a_rank_that_did_not_answer():
    said = diagnose([waiting(0, state_={"heard": [2], "unheard": [1]}), waiting(2)], range(3))
    assert "Rank 1 did not answer: dead, stopped, or cut off from the others." in said and "left no report" not in said
    assert said.endswith("So the job waits for rank 1.")


def test_a_rank_that_did_not_answer_left_a_report():
    """All seem to be in the same call, but one was stopped there."""
    told = {"heard": [2], "unheard": [1]}
    assert verdict(waiting(0, state_=told), waiting(1), waiting(2)) == "So the job waits for rank 1."


def test_a_host_that_was_cut_off_hears_nobody_either():
    states = [waiting(0, state_={"heard": [2], "unheard": [1]}), waiting(1, state_={"unheard": [0, 2]}),
              waiting(2, state_={"heard": [0], "unheard": [1]})]  # fmt: skip
    assert verdict(*states) == "So the job waits for rank 1."


def test_two_halves_that_do_not_hear_each_other():
    halves = {0: ([1], [2, 3]), 1: ([0], [2, 3]), 2: ([3], [0, 1]), 3: ([2], [0, 1])}
    states = [waiting(rank, state_={"heard": heard, "unheard": not_}) for rank, (heard, not_) in halves.items()]
    assert verdict(*states, ranks=range(4)).startswith("So the network is down between ranks 0, 1 and ranks 2, 3:")


def test_a_report_that_is_missing_or_old():
    assert verdict(waiting(0), waiting(2)) == "So the job waits for rank 1."
    said = diagnose([waiting(0), idle(1, time=NOW - 30), waiting(2)], range(3))
    assert "Rank 1 (process 101 on node1) gave its last sign of life 30 s before the others" in said
    assert said.endswith("So the job waits for rank 1.")


# Jobs that were ended.


def test_a_rank_that_failed():
    """The first of them: others may fail because of it."""
    words = {"failed": "raised ValueError: no such file at a.py:7", "last_words": True}
    later = {"failed": "raised BrokenPipeError: a.py:8", "last_words": True, "time": NOW + 0.1}
    said = diagnose([waiting(0, peer=1), idle(1, **words), waiting(2)], range(3))
    assert "Rank 1 raised ValueError: no such file at a.py:7." in said
    assert said.endswith("So the job ended because of rank 1.")
    assert verdict(idle(0, **later), idle(1, **words), waiting(2)) == "So the job ended because of rank 1, the first to fail."


def test_the_first_to_die():
    states = [waiting(rank, seconds=0.01, state_={"died": NOW + 0.01 * abs(rank - 1)}) for rank in range(3)]
    said = verdict(*states)
    assert said == "So rank 1 was the first to die, 0.010 s before the next: killed, or crashed (process 101 on node1)."
    states[2]["died"] = NOW + 0.001
    assert verdict(*states).startswith("So ranks 1, 2 died first, at the same time as far as can be told: one was killed")


def test_who_dies_first_does_not_matter_where_a_rank_ended_the_job_after_waiting():
    gave_up = {"died": NOW + 3, "last_words": True}
    states = [waiting(0, seconds=0.3, given_up=True, state_=gave_up), idle(1, died=NOW + 2), idle(2, calls=5, died=NOW + 1)]
    assert verdict(*states) == "So the others wait for rank 1, which made no such call."


def test_a_job_that_hung_and_was_ended():
    states = [waiting(0, state_={"died": NOW}), idle(1, died=NOW + 0.1), waiting(2, state_={"died": NOW + 0.1})]
    assert verdict(*states) == "So the others wait for rank 1, which made no such call."


def test_a_rank_that_came_to_its_end():
    said = diagnose([waiting(0), idle(1, ended=True), waiting(2)], range(3))
    assert "Rank 1 came to the end of the program." in said
    assert said.endswith("So the others wait for rank 1, which made no such call.")


def test_a_job_that_works():
    assert verdict(idle(0), waiting(1, seconds=0.1), idle(2)) == "No rank has waited in a collective for long."


def test_one_rank_alone_has_no_verdict():
    said = diagnose([waiting(1)], [1])
    assert said == "Rank 1 in call 5 of communicator w.0: Allreduce of 80 bytes at a.py:1."


def test_reports_of_older_versions():
    """They do not have all that there is by now."""
    old = idle(1)
    for name in ("failed", "last_words", "heard", "unheard", "died"):
        del old[name]
    assert verdict(waiting(0), old, waiting(2)).startswith("So the others wait for rank 1,")
