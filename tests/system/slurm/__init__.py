"""The job templates on a real SLURM: every launcher, every way to fail, on four hosts of the virtual cluster."""
