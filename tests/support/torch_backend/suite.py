"""PyTorch's own tests of its backends, each on all ranks of an MPI job, for the backend mpicoll or for gloo.

They ship in the wheel (torch.testing._internal.distributed) and know the names of PyTorch's own backends alone, so that they
run as "gloo", which is ours where that is asked for. After a test that fails or hangs the job is started anew. By hand:

    python -m tests.support.torch_backend.suite --ranks 3 --backend mpicoll [--only test_all_gather,test_barrier]
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import sleep, time

from tests.support.launching import environment

#: seconds without a result after which a test counts as hung
PATIENCE = 90
PASSED, SKIPPED = "passed", "skipped"


def run(python, mpiexec, ranks, backend, only=(), but=()):
    """{test: "passed", "skipped", or what went wrong}. only: these tests, or all; but: without those."""
    found, before = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.touch()
        while True:
            words = ["--ranks", str(ranks), "--backend", backend, "--log", str(log), "--only", ",".join(only),
                     "--but", ",".join(but)]
            command = [mpiexec, "-n", str(ranks), python, "-m", "tests.support.torch_backend.on_ranks", *words]
            ended = _run_job(command, log, Path(folder, "output"))
            found = _results(log)
            if "" in found:  # the job has said that there is nothing left
                return {name: result for name, result in found.items() if name}
            assert len(found) > before, f"{' '.join(command)}: ended without a result\n{ended[-4000:]}"
            before, begun = len(found), [name for name, result in found.items() if result is None]
            with log.open("a") as file:
                file.writelines(json.dumps([name, ended[-4000:] or "hung"]) + "\n" for name in begun)


def _run_job(command, log, output):
    """Wait for a job, as long as it has results; its output."""
    more = {"BACKEND": "gloo", "WORLD_SIZE": command[2], "MPICOLL_TORCH_TMP": str(log.parent),
            # test_barrier_timeout_global asks for a file; by addresses, to meet again within a second fails now and then
            "INIT_METHOD": f"file://{log.parent}/met-again"}  # fmt: skip
    with output.open("w") as file:
        job = subprocess.Popen(command, env=environment(**more), stdin=subprocess.DEVNULL,
                               stdout=file, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            while job.poll() is None and time() - log.stat().st_mtime < PATIENCE:
                sleep(0.2)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
    return output.read_text(errors="replace")


def _results(log):
    """By test, as the job wrote them line by line; None: begun. A failure counts, whatever other ranks say."""
    found = {}
    for line in log.read_text().splitlines():
        name, result = json.loads(line)
        if found.get(name) in (None, PASSED, SKIPPED):
            found[name] = result
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", choices=("mpicoll", "gloo"), default="mpicoll")
    parser.add_argument("--only", default="", help="tests, with commas between; all of them")
    asked = parser.parse_args()
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    found = run(sys.executable, mpiexec if Path(mpiexec).exists() else shutil.which("mpiexec"), asked.ranks, asked.backend,
                [name for name in asked.only.split(",") if name])  # fmt: skip
    for name, result in found.items():
        if result not in (PASSED, SKIPPED):
            print(f"{name}\n{result}\n")
    print(Counter(result if result in (PASSED, SKIPPED) else "failed" for result in found.values()))
    print("failed:", *(name for name, result in found.items() if result not in (PASSED, SKIPPED)))


if __name__ == "__main__":
    main()
