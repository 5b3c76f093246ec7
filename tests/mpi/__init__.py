"""Tests that run on every rank: `mpiexec -n 3 python -m pytest --with-mpi tests/mpi`, as `system/test_mpi.py` does."""
