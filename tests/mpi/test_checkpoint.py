"""Checkpoints on ranks that share a directory: round trips, damage that is skipped and named, one error on all ranks."""

import resource
from pathlib import Path

import numpy as np
import pytest

from mpicoll.errors import ArgumentError, LaunchError
from mpicoll.train.checkpoint.directory import Checkpoints
from tests.support.cases import RANK, SIZE
from tests.support.checkpoints import TOTALS, mine, same_as, save, write_manifest
from tests.support.fakes.arrays import OnDevice

pytestmark = pytest.mark.mpi


def names(comm, directory):
    comm.Barrier()  # rank 0 removes after the last message
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("writers", range(1, SIZE + 1))
def test_a_state_is_read_back_as_any_number_of_ranks_saved_it(comm, directory, writers):
    group = comm.Split(RANK < writers)
    if RANK < writers:
        checkpoints = Checkpoints(directory / "new" / "deep", group)
        path = checkpoints.save(7, mine(7, size=writers), TOTALS, {"loss": 0.1 * 7})
        assert path == directory / "new" / "deep" / "step-0000000007"
    group.Free()
    comm.Barrier()
    checkpoint = Checkpoints(directory / "new" / "deep", comm).load()
    assert checkpoint.ranks == writers and same_as(checkpoint, 7)


def test_nothing_there_and_the_newest_of_those_kept(comm, directory):
    checkpoints = Checkpoints(directory, comm, keep=2)
    assert checkpoints.load() is None and checkpoints.steps() == []
    save(checkpoints, 9, 10, 100)
    assert checkpoints.steps() == [100, 10] and same_as(checkpoints.load(), 100)
    assert names(comm, directory) == ["step-0000000010", "step-0000000100"]


def test_a_step_that_is_saved_again_is_replaced_and_later_ones_stay(comm, directory):
    checkpoints = save(Checkpoints(directory, comm, keep=1), 5)
    checkpoints.save(5, mine(6), TOTALS, {"second": True})
    assert checkpoints.load().meta == {"second": True} and checkpoints.steps() == [5]
    save(checkpoints, 3)
    assert checkpoints.steps() == [5, 3]


def test_left_overs_of_a_dead_job_are_removed_by_the_next_save(comm, directory):
    checkpoints = Checkpoints(directory, comm)
    if RANK == 0:
        (directory / ".step-0000000004.0badcafe").mkdir()
        (directory / ".step-0000000004.0badcafe" / "rank-0000.bin").write_bytes(b"half")
    comm.Barrier()
    assert checkpoints.load() is None
    save(checkpoints, 5)
    assert names(comm, directory) == ["step-0000000005"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def other_schema(path):
    write_manifest(path, {"schema": 2})


LAST = f"rank-{SIZE - 1:04d}.bin"
DAMAGE = {
    "a bit of a rank's file": (LAST, flip, f"{LAST} has checksum "),
    "a rank's file too short": (LAST, truncate, f"{LAST} has "),
    "a rank's file missing": ("rank-0000.bin", Path.unlink, "rank-0000.bin: No such file"),
    "a bit of the manifest": ("manifest.json", flip, "manifest.json "),
    "half a manifest": ("manifest.json", truncate, "manifest.json is not"),
    "no manifest": ("manifest.json", Path.unlink, "manifest.json: No such file"),
    "a list": ("manifest.json", lambda path: path.write_text("[1]"), "manifest.json is not"),
    "no text": ("manifest.json", lambda path: path.write_bytes(b"\xff\x00"), "manifest.json is not"),
    "a later schema": ("manifest.json", other_schema, "manifest.json has schema 2; this version reads 1"),
}


@pytest.mark.parametrize(("file", "damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_named_and_an_older_one_is_used(comm, directory, capfd, file, damage, words):
    checkpoints = save(Checkpoints(directory, comm), 1, 2)
    if RANK == 0:
        damage(directory / "step-0000000002" / file)
    comm.Barrier()
    capfd.readouterr()
    assert same_as(checkpoints.load(), 1)
    said = capfd.readouterr().err
    expected = f"mpicoll: checkpoint {directory}/step-0000000002 is skipped: {words}"
    assert said.count("\n") == 1 and expected in said if RANK == 0 else said == ""
    save(checkpoints, 2)
    assert same_as(checkpoints.load(), 2)


def test_a_job_that_died_while_it_replaced_a_step_leaves_the_former_one(comm, directory):
    checkpoints = save(Checkpoints(directory, comm), 1, 2)
    if RANK == 0:
        (directory / "step-0000000002").rename(directory / "step-0000000002-replaced")
    comm.Barrier()
    assert same_as(checkpoints.load(), 2)
    checkpoints.save(2, mine(2), TOTALS, {"loss": 0.1 * 2, "second": True})
    assert checkpoints.load().meta["second"] and checkpoints.steps() == [2, 1]


def test_a_checkpoint_that_is_not_accepted_is_an_error_on_all_ranks(comm, directory):
    def accept(meta):
        if RANK == SIZE - 1:
            raise ArgumentError(f"another model at step {meta['step']}")

    checkpoints = save(Checkpoints(directory, comm), 1, 2)
    with pytest.raises(ArgumentError, match="another model at step 2"):
        checkpoints.load(accept)
    assert same_as(checkpoints.load(lambda meta: None), 2)


def test_a_directory_below_a_file_is_one_error_on_all_ranks(comm, directory):
    if RANK == 0:
        (directory / "file").touch()
    comm.Barrier()
    for path in (directory / "file" / "below", directory / "file"):
        with pytest.raises(LaunchError, match=f"rank 0 on .* cannot make {path} .*directory|File exists"):
            Checkpoints(path, comm)


@pytest.mark.skipif(SIZE == 1, reason="one rank shares with nobody")
def test_a_directory_that_is_not_shared_is_one_error_on_all_ranks(comm, directory):
    own = directory / f"node{RANK}"
    own.mkdir()
    with pytest.raises(LaunchError, match="rank 1 on .*node1.*rank 0 made there; the directory must be shared by all nodes"):
        Checkpoints(own, comm)
    assert names(comm, own) == []


def test_a_full_disk_on_one_rank_is_an_error_on_all_and_the_former_checkpoint_stays(comm, directory):
    checkpoints = save(Checkpoints(directory, comm), 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if RANK == SIZE - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(LaunchError, match=f"rank {SIZE - 1} on .* cannot write {directory}/.*{LAST} .File too large"):
            save(checkpoints, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(comm, directory) == ["step-0000000001"]
    assert same_as(checkpoints.load(), 1) and same_as(save(checkpoints, 2).load(), 2)


def array(count, dtype="float32"):
    return np.zeros(count, dtype)


#: what the last rank holds in place of all of "x", and of another vector; words of the error
WRONG = {
    "a gap": ({"x": [(0, array(4)), (5, array(5))]}, "x: expected each element once"),
    "an overlap": ({"x": [(0, array(4)), (3, array(7))]}, "x: expected each element once"),
    "too short": ({"x": [(0, array(9))]}, "all 10 elements, got 9"),
    "too long": ({"x": [(0, array(11))]}, "all 10 elements, got 11"),
    "missing": ({}, "all 10 elements, got 0"),
    "two dtypes": ({"x": [(0, array(5)), (5, array(5, "float64"))]}, "dtype of x: expected the same"),
    "integers": ({"x": [(0, array(10, "int32"))]}, "dtype of x: expected one of float16"),
    "a matrix": ({"x": [(0, array((5, 2)))]}, "shape of x: expected 1-D"),
    "a name without total": ({"x": [(0, array(10))], "y": [(0, array(1))]}, "vector: expected one of x, got 'y'"),
}


@pytest.mark.parametrize(("vectors", "words"), WRONG.values(), ids=WRONG)
def test_pieces_that_do_not_cover_a_vector_once(comm, directory, vectors, words):
    checkpoints = Checkpoints(directory, comm)
    with pytest.raises(ArgumentError, match=words):
        checkpoints.save(1, vectors if RANK == SIZE - 1 else {}, {"x": 10}, {})
    assert names(comm, directory) == []


def test_other_bad_arguments(comm, directory):
    with pytest.raises(ArgumentError, match="keep"):
        Checkpoints(directory, comm, keep=0)
    checkpoints = Checkpoints(directory, comm)
    with pytest.raises(ArgumentError, match="step"):
        checkpoints.save(-1, {}, {}, {})
    with pytest.raises(ArgumentError, match="meta: expected what JSON can hold"):
        checkpoints.save(1, {}, {}, {"array": array(1)})
    checkpoint = save(checkpoints, 1).load()
    for name, start, stop in [("mean", 0, 8010), ("mean", -1, 3), ("mean", 4, 3), ("means", 0, 1)]:
        with pytest.raises(ArgumentError, match="within 8009 elements|one of parameters, mean"):
            checkpoint.read(name, start, stop)


def test_arrays_on_a_device_and_strided_ones(comm, directory):
    checkpoints, whole = Checkpoints(directory, comm), np.arange(20.0)
    pieces = [(0, OnDevice(whole[:10:2])), (5, whole[10::2])] if RANK == 0 else []
    checkpoints.save(1, {"x": pieces}, {"x": 10}, {})
    assert (checkpoints.load().read("x", 0, 10) == whole[::2]).all()
