"""Measurements behind the README: `run` measures, against `peers`; `report` makes tables.

Each is one command, for each MPI library, in the repository's root (MPI: mpich or openmpi):

    mpiexec -n 2 python -m benchmarks.run.overhead --json benchmarks/results/overhead-MPI-2.json
    mpiexec -n 2 python -m mpicoll bench --in-place --factor 4 \\
        --json benchmarks/results/allreduce-MPI-2.json
    mpiexec -n 8 python -m benchmarks.run.volume --json benchmarks/results/volume-MPI-8.json
    mpiexec -n 3 python -m benchmarks.run.fuzz --calls 25000 \\
        --json benchmarks/results/fuzz-MPI-3.json
    mpiexec -n 3 python -m benchmarks.run.trainings --json benchmarks/results/trainings-MPI-3.json
    mpiexec -n 2 python -m benchmarks.run.soak --json benchmarks/results/soak-MPI-2.json
    mpiexec -n 2 python -m benchmarks.gpu --json benchmarks/results/gpu-MPI-2.json
    python -m benchmarks.run.suite
    python -m benchmarks.run.versions --before TREE
    python -m benchmarks.report.tables
"""
