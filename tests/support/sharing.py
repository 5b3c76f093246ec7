"""How the processes of pytest-xdist share the tests: one by one, but for those that one process runs in a row."""

from xdist.scheduler import LoadScopeScheduling

#: they make hosts, and look whether any are left
HOSTS = ("slurm/", "test_cluster.py", "test_random_kills.py", "test_readme.py", "test_survival.py", "test_worked.py")
RANKS = "ranks"
ROWS = {
    # most of them are short, and jobs of MPI need the cores of several processes: another one starts them meanwhile
    **{f"tests/unit/test_{letter}": "unit, first half" for letter in "abcdefghijkl"},
    "tests/unit/": "unit, second half",
    **{f"tests/system/{name}": "hosts" for name in HOSTS},
    # their fixtures take long
    "tests/system/test_aarch64.py": "aarch64",
    "tests/system/test_packaging.py": "packaging",
    # ranks that wait look for messages all the time: two jobs of two ranks on two cores take longer side by side than in turn
    "tests/system/test_mpi.py": RANKS,
}


class Sharing(LoadScopeScheduling):
    """The longest row first, then the row of jobs, whose tests take minutes, in the other process.

    The marks of pytest-xdist are not used: its version 3.8 does not see them with pytest 9.
    """

    def _split_scope(self, nodeid):
        for start, row in ROWS.items():
            if nodeid.startswith(start):
                return row
        return nodeid

    def _assign_work_unit(self, node):
        if any(self.assigned_work.values()) and RANKS in self.workqueue:  # the longest row has begun
            self.workqueue.move_to_end(RANKS, last=False)
        super()._assign_work_unit(node)
