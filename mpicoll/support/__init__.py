"""Small helpers for every room: units, settings, argument checks, optional packages, nodes.

Each module stands for itself, so import it by its name; `node` alone needs MPI to be imported.
"""
