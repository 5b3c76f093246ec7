"""What `mpicoll diagnose` says of states made by hand: its last line names the rank that is to blame, and no other."""

import re

import pytest

from mpicoll.reports import diagnose, live_table
from mpicoll.watch.answers import packed, runs_of, unpacked

NOW = 1000.0


def call(number, text="Allreduce of 80 bytes", seconds=3.0, **more):
    return {"number": number, "call": text, "where": "", "site": "a.py:1", "seconds": seconds, "peer": None, **more}


def communicator(calls, *under_way, name="w.0", ranks=(0, 1, 2), past=(), given_up_by=None):
    return {"name": name, "rank": 0, "ranks": list(ranks), "calls": calls, "broken": "", "given_up_by": given_up_by,
            "under_way": list(under_way), "past": list(past)}  # fmt: skip


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


def test_a_rank_whose_threads_make_no_call():
    said = diagnose([waiting(0), idle(1, threads=["b.py:3", "c.py:4"]), waiting(2)], range(3))
    assert "Rank 1 is in no collective but at a.py:9 (other threads at b.py:3, c.py:4); its last was call 4" in said


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


def test_a_rank_that_is_busy_in_a_call_that_the_others_have_left():
    """A handler of signals that does not come back, while MPI's own call is under way."""
    said = verdict(idle(0, 5), idle(1, 5), waiting(2, inside="a.py:7"))
    assert said == "So the job waits for rank 2, busy in the user's own code in the middle of a call."


def test_a_rank_that_is_alone_in_a_call():
    assert verdict(idle(0, 5), idle(1, 5), waiting(2)) == "So the job waits for rank 2: the others have that call behind them."


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


def test_a_rank_that_others_name_failed_before_them():
    """They may write their reports before it does, and at its end the launcher may not let it write one."""
    told = {"failed": "raised MpicollError: rank 2 gave this communicator up: ...", "last_words": True}
    one = communicator(4, given_up_by=2) | {"broken": "rank 2 gave this communicator up: ..."}
    itself = idle(2, failed="raised ValueError: no such file at a.py:7", last_words=True, time=NOW + 0.1)
    for last in (itself, idle(2)):
        said = verdict(state(0, communicator(4), one, **told), state(1, one, **told), last)
        assert said == "So the job ended because of rank 2, the first to fail."


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


def remembered(*calls, begun=900.0, name="w.0"):
    """The history of a rank: its calls, at places from 1 on."""
    words = [name, "", *calls, "a.py:1", "a.py:2"]
    rows = [[0, place, place + 10, words.index(what), 1, len(words) - (2 if what == "Bcast" else 1), begun + place, 0.1]
            for place, what in enumerate(calls, 1)]  # fmt: skip
    return {"words": words, "rows": rows}


def test_the_first_call_that_ranks_do_not_have_in_common():
    """It is neither the one they wait in nor the last that ended; who left most others is to blame."""
    alike, other = ("Allreduce", "Bcast", "Reduce", "Reduce"), ("Allreduce", "Reduce", "Reduce", "Bcast")
    states = [waiting(rank, 15, state_={"history": remembered(*(other if rank == 1 else alike))}) for rank in range(3)]
    said = diagnose(states, range(3))
    assert said.splitlines()[-1] == "So rank 1 went apart from the others at call 12 of communicator w.0."
    assert "ranks 0, 2: Bcast at a.py:1\n  rank 1: Reduce at a.py:2" in said


def test_ranks_that_remember_other_times_are_not_taken_to_differ():
    """One is ahead, one has made many more calls on another communicator since; places that only one remembers tell nothing."""
    long = remembered("Allreduce", "Bcast", "Reduce")
    late = {**remembered("Allreduce", "Bcast", "Reduce"), "rows": remembered("Allreduce", "Bcast", "Reduce")["rows"][2:]}
    states = [waiting(0, state_={"history": long}), waiting(1, state_={"history": late}), waiting(2)]
    assert "in common" not in diagnose(states, range(3))
    elsewhere = [waiting(rank, state_={"history": remembered("Allreduce" if rank else "Bcast", name=f"w.0/{rank}")})
                 for rank in range(2)]  # fmt: skip
    assert "in common" not in diagnose(elsewhere, range(2))


def test_a_call_under_way_differs_too():
    states = [waiting(rank, 5, place=5, text="Bcast" if rank == 2 else "Allreduce") for rank in range(3)]
    assert verdict(*states) == "So rank 2 went apart from the others at call 5 of communicator w.0."


def test_the_live_table_has_a_line_for_each_rank():
    states = [waiting(0, site="/home/a.py:1"), idle(1, rates={"calls": 3.0, "bytes": 2 << 20, "inside": 0.25}),
              idle(2, failed="raised ValueError\nmore")]  # fmt: skip
    head, _, first, second, third, verdict = live_table(states, NOW + 1, 200, 50).splitlines()
    assert head == "3 ranks, 0 ended" and first.endswith("4.00s in Allreduce of 80 bytes at a.py:1, waits for ranks 1, 2")
    assert re.search(r"3 +2M +25%  at a.py:9$", second) and third.endswith("failed: raised ValueError")
    assert verdict == "So the job ended because of rank 2."


def test_the_live_table_fits_the_screen():
    """Where there is no room for all ranks it has those that others wait for, and who waits for longest."""
    states = [waiting(rank, seconds=2.0 + rank, state_={"size": 100}) for rank in range(100)]
    states[50] = idle(50, size=100)
    for state in states:
        state["communicators"][0]["ranks"] = list(range(100))
    lines = live_table(states, NOW, 60, 8).splitlines()
    assert len(lines) == 8 and max(map(len, lines)) == 60
    assert [line.split()[0] for line in lines[2:6]] == ["50", "97", "98", "99"] and lines[6] == "and 96 other ranks"


def test_the_live_table_tells_who_is_silent_and_who_has_ended():
    table = live_table([idle(0, time=NOW - 9), idle(1, ended=True), idle(2)], NOW, 200, 50)
    assert "silent for 9.00s" in table and "ended\n" in table


@pytest.mark.parametrize("ranks", [[], [3], [0, 1, 2], [5, 3, 1], [0, 2, 4, 5, 6, 9], [1, 0, 3, 2, 5, 4]])
def test_an_answer_says_the_ranks_of_a_communicator(ranks):
    given = state(1, communicator(4, ranks=ranks), communicator(5, name="w.1", ranks=ranks))
    assert unpacked(packed(given)) == given


def test_answers_do_not_grow_with_the_number_of_ranks():
    size = 100_000
    assert runs_of(range(size)) == [(0, 1, size)] and runs_of(range(1, size, 2)) == [(1, 2, size // 2)]
    few, many = (packed(state(1, communicator(4, ranks=range(count)))) for count in (10, size))
    assert len(many) - len(few) < 10
    first, second = (unpacked(many)["communicators"][0]["ranks"] for _ in range(2))
    assert first is second
