"""SLURM job scripts: templates (`new`), checks (`mistakes`), and scaling sweeps (`scaling`).

Scheduling is SLURM's: sbatch, srun and scontrol do the work. The templates are the files of `jobs/`
in the project.
"""

from .check import Script, mistakes
from .new import KINDS, write
from .scaling import gather, table

__all__ = ["KINDS", "Script", "gather", "mistakes", "table", "write"]
