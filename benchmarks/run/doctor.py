"""Faults planted at random on the virtual cluster: does `mpicoll doctor` name them?

    python -m benchmarks.run.doctor --planted 60 --healthy 30 --json doctor.json

Each run makes a cluster of 3 to 6 hosts with links of 100 or 200 Mb/s. A planted fault is named
where a finding of its kind names its host; each finding to act on elsewhere is a false alarm, and
in a healthy run each finding to act on. A run that crashes counts as a fault that is not named.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpicoll.cluster import Cluster
from mpicoll.cluster.links import burst, shape

#: {fault: kinds of findings that name it}
FAULTS = {
    "slow host": {"node-slow"},
    "slow in one direction": {"node-slow-one-way", "link-slow-one-way"},
    "two ranks on one core": {"core-shared"},
    "busy core": {"core-busy"},
    "too many threads": {"threads"},
    "wrong interface": {"interface", "settings-differ"},
    "wrong results": {"core-wrong"},
}
#: a process that keeps a processor busy
BUSY = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
LIMIT = 180


def main():
    """Run the trial; status 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planted", type=int, default=60)
    parser.add_argument("--healthy", type=int, default=30)
    parser.add_argument("--mpi", default="mpich,openmpi", help="taken in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run begins later")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    faults = [list(FAULTS)[number % len(FAULTS)] for number in range(arguments.planted)]
    every = [*faults, *["none"] * arguments.healthy]
    dice.shuffle(every)
    libraries = arguments.mpi.split(",")
    runs = []
    end = time.monotonic() + arguments.seconds
    for number, fault in enumerate(every):
        if time.monotonic() > end:
            break
        runs.append(one_run(fault, libraries[number % len(libraries)], dice))
        print(json.dumps(runs[-1]), flush=True)
        if arguments.json:
            write(arguments.json, runs)
    counts = count(runs)
    print(json.dumps(counts))
    missed = counts["named"] < 0.95 * counts["planted"] or counts["false alarms"]
    sys.exit(1 if missed else 0)


def write(path, runs):
    """The result so far."""
    Path(path).write_text(json.dumps({"schema": 1, "counts": count(runs), "runs": runs}, indent=1))


def count(runs):
    """How many faults were named, and how many alarms were false."""
    planted = [run for run in runs if run["fault"] != "none"]
    healthy = [run for run in runs if run["fault"] == "none"]
    return {
        "planted": len(planted),
        "named": sum(run["named"] for run in planted),
        "also elsewhere": sum(bool(run["elsewhere"]) for run in planted),
        "healthy": len(healthy),
        "false alarms": sum(bool(run["elsewhere"]) or run["status"] != 0 for run in healthy),
    }


def one_run(fault, mpi, dice):
    """Plant one fault, examine, and compare."""
    hosts = dice.randint(3, 6)
    rate = dice.choice(["100mbit", "200mbit"])
    each = 2 if fault == "two ranks on one core" else dice.choice([1, 1, 1, 2])
    victim = dice.randrange(hosts)
    began = time.monotonic()
    with Cluster(hosts, rate) as cluster, tempfile.TemporaryDirectory() as place:
        environ, process = plant(cluster, fault, victim, each, dice)
        written = Path(place) / "found.json"
        command = ["python", "-m", "benchmarks.run.planted", "doctor", "--json", str(written)]
        try:
            done = cluster.run(
                command, mpi, ranks_per_host=each, env={**os.environ, **environ}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
            )  # fmt: skip
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            status, said = None, (error.stdout or b"")[-2000:].decode(errors="replace")
        finally:
            if process:
                process.kill()
                process.wait()
        found = json.loads(written.read_text())["findings"] if written.exists() else None
    facts = {"fault": fault, "mpi": mpi, "hosts": hosts, "rate": rate, "ranks per host": each}
    facts |= {"victim": victim, "status": status, "seconds": round(time.monotonic() - began, 1)}
    if found is None:
        return {**facts, "named": False, "elsewhere": [], "said": said[-2000:]}
    return {**facts, **judged(fault, victim, found)}


def judged(fault, victim, found):
    """Whether the fault was named, and which findings were of other hosts."""
    serious = [finding for finding in found if finding["severity"] != "note"]
    right = FAULTS.get(fault, set())
    named = [finding for finding in serious if finding["kind"] in right]
    here = {victim} if fault != "too many threads" else None
    named = [finding for finding in named if here is None or here == set(finding["nodes"])]
    others = [finding for finding in serious if finding not in named]
    elsewhere = [
        finding for finding in others if fault == "none" or set(finding["nodes"]) != {victim}
    ]
    return {
        "named": bool(named),
        "kinds": sorted({finding["kind"] for finding in named}),
        "elsewhere": [f"{finding['kind']}: {finding['seen']}" for finding in elsewhere],
        "same host": [f"{finding['kind']}: {finding['seen']}" for finding in others
                      if finding["kind"] and finding not in elsewhere],
    }  # fmt: skip


def plant(cluster, fault, victim, each, dice):
    """(more of the environment, a process to end afterwards)."""
    host = cluster.hosts[victim]
    first = victim * each
    if fault in ("slow host", "slow in one direction"):
        slow = cluster.rate / 10
        ends = [(host, "eth0"), ("login", host)]
        for where, device in ends if fault == "slow host" else [dice.choice(ends)]:
            change(cluster, where, device, slow)
    elif fault == "two ranks on one core":
        return {"DOCTOR_PLANT": f"bind:{first},{first + 1}:{dice.randrange(2)}"}, None
    elif fault == "busy core":
        core = dice.randrange(2)
        words = cluster.enter(host, [sys.executable, "-c", BUSY % core])
        process = subprocess.Popen(words)
        return {"DOCTOR_PLANT": f"bind:{first}:{core}"}, process
    elif fault == "too many threads":
        return {"OMP_NUM_THREADS": str(dice.choice([4, 8, 64]))}, None
    elif fault == "wrong interface":
        second_network(cluster)
        return {"DOCTOR_PLANT": f"interface:{first}:eth1"}, None
    elif fault == "wrong results":
        return {"DOCTOR_PLANT": f"wrong:{first}:"}, None
    return {}, None


def change(cluster, where, device, rate):
    """Another rate of one end of a link."""
    credit = burst(rate)
    limits = f"rate {rate:.0f}bit ceil {rate:.0f}bit burst {credit}b cburst {credit}b"
    words = ["tc", "class", "change", "dev", device, "parent", "1:", "classid", "1:1", "htb"]
    cluster.call([*words, *limits.split()], where, check=True)


def second_network(cluster):
    """An eth1 on every host, of the same rate, in another subnet."""
    login = cluster.login
    lines = ["link add eth1 type bridge", "link set eth1 up"]
    for number, name in enumerate(cluster.hosts):
        pid = cluster.computer(name).pid
        lines.append(f"link add second{number} type veth peer name eth1 netns {pid}")
        lines.append(f"link set second{number} master eth1 up")
    login.feed("ip", lines)
    names = [f"second{number}" for number in range(len(cluster.hosts))]
    login.feed("tc", [line for name in names for line in shape(name, cluster.rate)])
    for number, name in enumerate(cluster.hosts):
        own = f"10.79.0.{number + 1}/24"
        cluster.computer(name).feed("ip", [f"addr add {own} dev eth1", "link set eth1 up"])
        cluster.computer(name).feed("tc", shape("eth1", cluster.rate))


if __name__ == "__main__":
    main()
