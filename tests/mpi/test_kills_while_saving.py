"""A rank that is killed while a checkpoint is saved: whatever the moment, what is on the disk is whole."""

import shutil
import sys
from contextlib import contextmanager

import pytest
from mpi4py import MPI

from mpicoll.train.checkpoint.directory import Checkpoints
from tests.support.cases import RANK
from tests.support.checkpoints import TOTALS, mine, same_as, save
from tests.support.killed_while_saving import check_all

pytestmark = pytest.mark.mpi


@contextmanager
def copied_at_every_change(directory, copies):
    """Whenever this rank has changed something on the disk: a copy of it, as a kill at that moment would leave it.

    A kill loses what Python has not written yet, which the copy does not see, and nothing else. Yields a list that names
    the calls that change nothing a kill could show: fsync and rename, in order.
    """
    seen, order = [None], []

    def look(frame, event, function):
        if event != "c_call" or RANK and frame.f_code.co_name != "write_file":  # elsewhere rank 0 removes meanwhile
            return
        sys.setprofile(None)
        if function.__name__ in ("fsync", "rename"):
            order.append(function.__name__)
        found = sorted((str(path), path.stat().st_size) for path in directory.rglob("*"))
        if found != seen[0]:
            seen[0] = found
            shutil.copytree(directory, copies / f"{len(list(copies.iterdir())):04d}")
        sys.setprofile(look)

    sys.setprofile(look)
    try:
        yield order
    finally:
        sys.setprofile(None)


def check_copy(path):
    """The step that a job would go on from, or None; its next save is whole and leaves no litter."""
    check_all(path)
    alone = Checkpoints(path, MPI.COMM_SELF, keep=1)
    found = alone.load()
    assert found is None or same_as(found, found.step)
    alone.save(50, mine(50, 0, 1), TOTALS, {"loss": 0.1 * 50})
    assert same_as(alone.load(), 50) and [one.name for one in path.iterdir()] == ["step-0000000050"]
    return found and found.step


def test_a_kill_at_any_moment_of_a_save_leaves_whole_checkpoints(comm, directory, tmp_path, capfd):
    checkpoints = Checkpoints(directory, comm, keep=2)
    for last, step in [(None, 1), (1, 2), (2, 3), (3, 3)]:  # the third save removes the first, the fourth replaces
        if step == last and RANK == 0:
            shutil.copytree(directory / "step-0000000003", directory / "step-0000000003-replaced")
        copies = tmp_path / f"{last}-{step}"
        copies.mkdir()
        comm.Barrier()
        with copied_at_every_change(directory, copies) as order:
            save(checkpoints, step)
        found = [check_copy(path) for path in sorted(copies.iterdir())]
        assert len(found) > (6 if RANK == 0 else 2)  # among them parts of its file
        assert set(found) == {last, step} if RANK == 0 else {last}
        if RANK == 0 and step != last:  # on the disk: its file, the manifest, their names; only then its own name, and that too
            assert order[:5] == ["fsync", "fsync", "fsync", "rename", "fsync"], order
    assert "skipped" not in capfd.readouterr().err
