"""The verifier: proves without MPI and without data what a schedule does."""

from .flow import flows_in_pieces, flows_read_late
from .graph_check import check_graph, prove_graph
from .msccl import MscclProof, check_msccl
from .prover import Cost, RankCost, check, quantisations
from .registering import Case, cases, check_cases, prove_once, register, unproved
from .symbolic import Expressions, Rank, SortedRound

__all__ = [
    "Case", "Cost", "Expressions", "MscclProof", "Rank", "RankCost", "SortedRound", "cases",
    "check", "check_cases", "check_graph", "check_msccl", "flows_in_pieces", "flows_read_late",
    "prove_graph", "prove_once", "quantisations", "register", "unproved",
]
