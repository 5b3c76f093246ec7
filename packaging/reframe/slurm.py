"""ReFrame: jobs of SLURM, whose ranks srun starts. Copy this file, and name your hosts and modules.

`squeue` asks SLURM for the state of jobs; with accounting, "slurm" asks sacct.
"""

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "squeue",
                    "launcher": "srun",
                    "environs": ["builtin"],
                    # MPICH and Intel MPI: pmi2, Open MPI: pmix
                    "env_vars": [["SLURM_MPI_TYPE", "pmi2"]],
                }
            ],
        }
    ],
    "environments": [{"name": "builtin"}],
}
