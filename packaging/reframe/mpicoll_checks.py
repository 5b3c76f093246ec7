"""ReFrame checks of an installed mpicoll: the algorithms are right, the calls on MPI are, and how long they take.

    reframe -C SITE.py -c packaging/reframe/mpicoll_checks.py -r

`-S ranks=64` runs the second on more ranks, `-S modules=mpicoll` loads a module first.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_before, sanity_function, variable


class MpicollCheck(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "mpicoll"


@rfm.simple_test
class Verify(MpicollCheck):
    """Every algorithm is proved up to 8 ranks; needs no MPI, so one task."""

    num_tasks = 1
    executable_opts = ["verify", "--max-size", "8"]

    @sanity_function
    def proved(self):
        return sn.assert_found(r"^all \d+ algorithms proved", self.stdout)


@rfm.simple_test
class Allreduce(MpicollCheck):
    """`mpicoll bench` compares each result with the right one, and exits with 1 where one differs."""

    ranks = variable(int, value=2)
    executable_opts = ["bench", "--collective", "allreduce", "--algorithms", "auto", "--sizes", "4K"]
    executable_opts += ["--repeats", "50", "--json", "bench.json"]

    @run_before("run")
    def set_tasks(self):
        self.num_tasks = self.ranks

    @sanity_function
    def right(self):
        ranks = sn.assert_found(rf", {self.ranks} ranks? on \d+ node", self.stdout)
        return sn.all([ranks, sn.assert_found(r" auto\b.* 0$", self.stdout)])

    @performance_function("us")
    def auto_4k(self):
        document = json.loads(Path(self.stagedir, "bench.json").read_text())
        [median] = [row["median_us"] for row in document["results"] if row["algorithm"] == "auto"]
        return median
