"""SLURM job scripts: `new` fills templates in, `mistakes` finds what is wrong with a script, `scaling` gathers a sweep.

Scheduling is SLURM's: sbatch, srun and scontrol do the work. The templates are the files of `jobs/` in the project.
"""
