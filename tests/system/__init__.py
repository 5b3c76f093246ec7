"""Tests that launch jobs: under mpiexec, on the virtual cluster, under SLURM, and as the README says."""
