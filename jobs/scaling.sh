#!/bin/bash
# Strong and weak scaling of the training over node counts: jobs/scaling.sh [options of sbatch], on the login node.
# Submits a job for each, and one that writes table and plot into $OUT when they have ended.
: "${COUNTS:=1 2 3 4}"                 # numbers of nodes; odd ones show what an algorithm is worth
: "${BATCH_SIZE:=4096}"                # strong: of all nodes together; weak: of each node
: "${DATA:=synthetic}"
: "${LENGTH:=--steps 100}"
: "${VENV:=$PWD/.venv}"
: "${OUT:=$PWD/scaling}"
: "${JOBS:=$(cd "$(dirname "$0")" && pwd)}"
export DATA LENGTH VENV OUT JOBS

[ -x "$VENV/bin/python" ] || { echo "mpicoll: VENV=$VENV: there is no bin/python" >&2; exit 1; }
export PLOT=$OUT/scaling.svg # where Matplotlib is there: the table is worth having without
"$VENV/bin/python" -c 'import matplotlib' 2> /dev/null || PLOT=
mkdir -p "$OUT" || exit
ids=
for nodes in $COUNTS; do
    for kind in strong weak; do
        [ $kind = weak ] && batch=$((BATCH_SIZE * nodes)) || batch=$BATCH_SIZE
        id=$(OUT="$OUT/$kind-$nodes" BATCH_SIZE=$batch CHECKPOINT="$OUT/$kind-$nodes/checkpoint" sbatch --parsable \
            --job-name="$kind-$nodes" --nodes="$nodes" --output="$OUT/%x-%j.out" "$@" "$JOBS/train_cpu.sbatch") || exit
        ids=$ids:${id%%;*}
    done
done
sbatch "$@" --job-name=scaling --nodes=1 --ntasks=1 --ntasks-per-node=1 --time=10 --dependency="afterany$ids" \
    --output="$OUT/table.txt" --wrap 'exec "$VENV/bin/python" -m mpicoll slurm scaling "$OUT" ${PLOT:+--plot "$PLOT"}' || exit
echo "will be in $OUT: table.txt${PLOT:+, scaling.svg}"
[ -n "$PLOT" ] || echo "no plot, as there is no Matplotlib in VENV=$VENV: $VENV/bin/pip install matplotlib"
