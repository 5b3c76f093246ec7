# This cluster, once for all templates: modules, the virtual environment, MPI's and the network's variables.

# module purge && module load python openmpi      # the cluster's own MPI, if mpi4py in VENV was built with it

[ -x "$VENV/bin/python" ] || stop 1 "VENV=$VENV: there is no bin/python, on $(hostname)" \
    "Make one where all nodes see it: python3 -m venv $VENV && $VENV/bin/pip install '.[mpich,train]'"
export PATH="$VENV/bin:$PATH"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}" # threads of a rank's arithmetic

# export UCX_NET_DEVICES=mlx5_0:1                 # the network card MPI should use
# export MPIR_CVAR_CH4_NETMOD=ofi                 # MPICH over UCX has addresses too long for some srun --mpi=pmi2
# export MPICOLL_TUNING_FILE=$HOME/tuned.json     # what tune.sbatch wrote
