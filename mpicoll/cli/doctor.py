"""find what is slow or wrong on this machine: links, cores, settings (run under mpiexec)."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from ..errors import ArgumentError
from . import outfiles
from .options import add_shared
from .plots import draw_pairs
from .screen import folded

_INDENT = 14


def add_arguments(parser: ArgumentParser) -> None:
    """Where results go."""
    add = parser.add_argument
    add(
        "--output",
        metavar="MODEL.json",
        help="write a model of this cluster, for `simulate --network` and `tune --network`",
    )
    add("--plot", metavar="FILE.svg", help="draw the bandwidth of each pair of nodes")
    add_shared(parser, "--json", "--done")


def run(arguments: Namespace) -> int:
    """Measure, print a page and write; exit status 1 where something is slow or wrong."""
    from mpi4py import MPI

    from ..launch import install_abort_hook

    install_abort_hook()
    from ..doctor import NOTE, describe, examine, findings, fitted
    from ..measure import measured_on

    comm = MPI.COMM_WORLD
    outfiles.check(arguments, comm)
    if arguments.output and comm.Get_size() == 1:
        raise ArgumentError("--output: a model needs two ranks or more, got one")
    facts = measured_on(comm)
    measured = examine(comm)
    found = findings(measured)
    if comm.Get_rank() == 0:
        for heading, text in describe(measured, found):
            print(folded(text, f"{heading:<{_INDENT}}", " " * _INDENT), flush=True)
        if arguments.json:
            document = {
                "schema": 1,
                "environment": facts,
                "findings": [asdict(finding) for finding in found],
                "measured": measured.as_json(),
            }
            outfiles.write_json(arguments.json, document)
        if arguments.output:
            outfiles.write_json(arguments.output, fitted(measured).as_json())
        if arguments.plot:
            draw_pairs(arguments.plot, measured.hosts, list(measured.best_pairs().values()))
        outfiles.write_done(arguments)
    comm.Barrier()
    status = int(any(finding.severity != NOTE for finding in found))
    if status and comm.Get_size() > 1:
        # all ranks end with status 1 in agreement: no rank has to end the job for the others
        MPI.Finalize()
    return status
