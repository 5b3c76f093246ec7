"""Small things every room may need: units, settings, argument checks, optional packages, array kinds, nodes.

Each module stands for itself, so import it by its name; `node` alone needs MPI.

May import: errors.
"""
