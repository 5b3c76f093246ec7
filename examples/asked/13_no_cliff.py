"""No cliff between neighbouring numbers of ranks (open-mpi PR #8198, #12550)."""
import json
from pathlib import Path

from mpicoll.algorithms import find
from mpicoll.verify import check

ranks = range(127, 130)
rounds = [check("bcast", find("bcast", "binomial").generator, size).rounds for size in ranks]
print(f"mpicoll: rounds of a binomial bcast on {list(ranks)} ranks: {rounds}")
results = Path(__file__).parents[2] / "benchmarks" / "results"
for hosts in "07", "08":
    rows = json.loads((results / f"hosts-openmpi-{hosts}.json").read_text())["results"]
    ms = {row["algorithm"]: row["median_us"] / 1000 for row in rows if row["bytes"] >> 20 == 1}
    said = f"Open MPI {ms['native']:.0f} ms, mpicoll {ms['auto']:.0f} ms"
    print(f"measured, an allreduce of 1 MiB on {int(hosts)} hosts: {said}")
