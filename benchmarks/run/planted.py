"""A rank of the trial of the doctor: plants a fault in itself, then becomes `mpicoll doctor`.

DOCTOR_PLANT is "bind:RANKS:PROCESSOR", "interface:RANKS:NAME", "wrong:RANKS:" or "none::", with
ranks separated by commas.
"""

import os

from mpicoll import cli


def main():
    """Plant, and run `mpicoll` with the arguments of this program."""
    kind, ranks, value = os.environ.get("DOCTOR_PLANT", "none::").split(":")
    own = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
    if own in ranks.split(","):
        if kind == "bind":
            os.sched_setaffinity(0, {int(value)})
        elif kind == "interface":
            os.environ["FI_TCP_IFACE"] = value
            os.environ["OMPI_MCA_btl_tcp_if_include"] = value
        elif kind == "wrong":
            _compute_wrongly()
    cli.main()


def _compute_wrongly():
    """One bit of the fixed computation's checksum is another."""
    from mpi4py import MPI  # noqa: F401  MPI starts before imports leave text in memory

    from mpicoll.doctor import cores

    right = cores.compute
    cores.compute = lambda: right() ^ 1


if __name__ == "__main__":
    main()
