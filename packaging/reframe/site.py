"""ReFrame: this machine alone, jobs under mpiexec. For a cluster see slurm.py."""

site_configuration = {
    "systems": [
        {
            "name": "local",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "mpiexec",
                    "environs": ["builtin"],
                }
            ],
        }
    ],
    "environments": [{"name": "builtin"}],
}
