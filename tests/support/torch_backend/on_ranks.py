"""One rank of PyTorch's own tests; see `suite`."""

import argparse
import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()

FOLDER = Path(os.environ["MPICOLL_TORCH_TMP"])
os.environ.update(RANK=str(RANK), TEMP_DIR=str(FOLDER), MASTER_ADDR="127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29517")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402

import mpicoll.torch  # noqa: E402

SKIPS = {skip.exit_code for skip in TEST_SKIPS.values()} | {0}


class Suite(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    """All of them."""

    rank = -1


def redirect():
    """Have process groups for which the tests ask gloo made by mpicoll, under its own name."""
    private = dist.distributed_c10d
    original = private._new_process_group_helper

    def helper(size, rank, ranks, backend, *given, **named):
        asked = str(backend).replace("gloo", "mpicoll")
        return original(size, rank, ranks, dist.Backend(asked), *given, **named)

    private._new_process_group_helper = helper


def run_one(name, file_name):
    """"passed" or "skipped"; raises what the test raised."""
    test = Suite(name)
    test.rank, test.file_name = RANK, file_name
    try:
        seconds = theirs.CUSTOM_PG_TIMEOUT.get(name, theirs.default_pg_timeout)
        dist.init_process_group(init_method=f"file://{file_name}", backend="gloo", world_size=SIZE, rank=RANK,
                                timeout=timedelta(seconds=seconds))  # fmt: skip
        WORLD.Barrier()  # as theirs: nobody leaves before all have come
        set_rng_seed()
        getattr(test, name)()
        WORLD.Barrier()
        return "passed"
    except unittest.SkipTest:
        return "skipped"
    except SystemExit as end:
        if end.code not in SKIPS:
            raise
        return "skipped" if end.code else "passed"
    finally:
        if sys.exc_info()[0] is None and dist.is_initialized():
            dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    for word in ("--ranks", "--backend", "--log", "--only", "--but"):
        parser.add_argument(word)
    asked = parser.parse_args()
    log = Path(asked.log)
    if asked.backend == "mpicoll":
        redirect()
    assert mpicoll.torch
    done = WORLD.bcast({json.loads(line)[0] for line in log.read_text().splitlines()} if RANK == 0 else None)
    names = asked.only.split(",") if asked.only else unittest.TestLoader().getTestCaseNames(Suite)
    done |= set(asked.but.split(","))
    for name in names:
        if name in done:
            continue
        prepare()
        say(log, name, None)
        try:
            result = run_one(name, FOLDER / f"store-{name}")
        except BaseException:
            with log.open("a") as file:
                file.write(json.dumps([name, f"rank {RANK}: {traceback.format_exc()}"]) + "\n")
            time.sleep(1)
            WORLD.Abort(1)
        say(log, name, max(WORLD.allgather(result)))
    say(log, "", "passed")


def prepare():
    """The files by which the tests meet."""
    if RANK == 0:
        for folder in ("barrier", "test_dir"):
            (FOLDER / folder).mkdir(exist_ok=True)
            for file in (FOLDER / folder).iterdir():
                file.unlink()
    theirs.Barrier.barrier_id = 0
    WORLD.Barrier()


def say(log, name, result):
    WORLD.Barrier()
    if RANK == 0:
        with log.open("a") as file:
            file.write(json.dumps([name, result]) + "\n")


if __name__ == "__main__":
    main()
