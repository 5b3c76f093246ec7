"""SLURM job scripts: `new` fills in templates, `mistakes` checks, `scaling` gathers a sweep.

Scheduling is SLURM's: sbatch, srun and scontrol do the work. The templates are the files of `jobs/` in the project.
"""

from .check import Script, mistakes
from .new import KINDS, write
from .scaling import gather, plot, table

__all__ = ["KINDS", "Script", "gather", "mistakes", "plot", "table", "write"]
