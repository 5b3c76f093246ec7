"""Measurements behind the README's tables: scripts, their committed results, and what makes tables of them.

Each is one command, for each MPI library, in the repository's root (MPI: mpich or openmpi):

    mpiexec -n 2 python -m benchmarks.overhead --json benchmarks/results/overhead-MPI-2.json
    mpiexec -n 2 python -m mpicoll bench --in-place --factor 4 --json benchmarks/results/allreduce-MPI-2.json
    mpiexec -n 8 python -m benchmarks.volume --json benchmarks/results/volume-MPI-8.json
    python -m benchmarks.tables
"""
