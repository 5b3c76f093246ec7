# What all templates share; a template sets its variables, then reads this file. It finds a launcher under which all ranks
# meet before work begins, and tells truly how the work ended.
#   plot FILE       prints `--plot FILE` where it can be drawn
#   run COMMAND …   runs it on all ranks of $NODES nodes; returns when rank 0 has written the file $DONE (mpicoll's --done; a
#                   program of yours finds the name in its environment), and otherwise ends the job: requeued where it can
#                   go on (at most MAX_RESTARTS times), else FAILED. With ELASTIC=N and Open MPI ranks go on when others
#                   die, and where nodes are lost it begins again in the same job on those that are left, if they are N

stop() { # stop STATUS WHAT REMEDY
    printf 'mpicoll: job %s: error: %s. %s\n' "$SLURM_JOB_ID" "$2" "$3" >&2
    exit "$1"
}

library() { # which MPI this Python's mpi4py uses
    python -c 'import mpi4py; mpi4py.rc.initialize = False; from mpicoll.support.quirks import library; print(library())'
}

plot() { # plot FILE: the option that draws it, where Matplotlib is there: a picture is worth no failed job
    ! python -c 'import matplotlib' 2> /dev/null || echo --plot "$1"
}

choose() { # PMI, the protocol of this MPI library under srun; mpirun, its own launcher
    local found
    found=$(library 2>&1) || stop 1 "VENV=$VENV: no MPI for Python (${found##*$'\n'})" \
        "Load the module of the MPI that mpi4py was built with in $JOBS/env.sh, or: $VENV/bin/pip install '.[mpich,train]'"
    case $found in *"Open MPI"*) : "${PMI:=pmix}" ;; *) : "${PMI:=pmi2}" ;; esac
    # quirk: mpirun-keeps-signals
    case $found in *"Intel MPI"*) mpirun=mpiexec.hydra ;; *) mpirun=mpirun ;; esac
    case $LAUNCHER in
        auto | srun | mpirun | mpiexec) ;;
        *) stop 1 "LAUNCHER=$LAUNCHER: no such launcher" "Expected auto, srun, mpirun or mpiexec" ;;
    esac
    [ -z "$ELASTIC" ] || survive "$found"
}

survive() { # survive LIBRARY: see to what ranks need to go on when others die
    [[ $ELASTIC != *[!0-9]* ]] || stop 1 "ELASTIC=$ELASTIC" "Expected the fewest nodes to go on with, or 0: off"
    [[ $1 == "Open MPI"* && $LAUNCHER != srun ]] || stop 1 "ELASTIC=$ELASTIC with $1 and LAUNCHER=$LAUNCHER, which ends all \
ranks when one dies" "Use Open MPI and LAUNCHER=mpirun; or ELASTIC=0: a job that loses a node is requeued"
    LAUNCHER=${LAUNCHER/auto/mpirun} nodes=$(left)
    unset SLURM_JOB_NUM_NODES # by which srun would complain when there are fewer
}

compose() { # compose LAUNCHER: launch=(…), the words before a command that start it on so many $ranks of $NODES nodes
    local each=$((ranks / NODES))
    case $1 in # -K: one rank's end is the end of all. quirk: hydra-counts-tasks
        srun) launch=(srun -K --mpi="$PMI" --nodes="$NODES" --ntasks="$ranks" ${SRUN_OPTIONS:-}) ;;
        *) launch=(env -u SLURM_NTASKS_PER_NODE "${1/mpirun/$mpirun}" -n "$ranks") ;;
    esac
    [ -z "$ELASTIC" ] || launch+=(--with-ft ulfm --mca coll ^han --host "$(printf "%s:$each," $nodes)")
}

meet() { # whether all ranks find each other, where they should be
    timeout 120 "${launch[@]}" python -m mpicoll info --ranks "$ranks" \
        ${SLURM_NTASKS_PER_NODE:+--ranks-per-node "$SLURM_NTASKS_PER_NODE"} < /dev/null
}

requeue() { # requeue WHY: from the start of this script, with what is in $OUT
    local state
    state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) # a job that was cancelled must stay so
    [ "$state" = RUNNING ] || stop 1 "it was ended from outside (${state:-no such job})" "Submit it again to go on"
    [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_RESTARTS" ] || stop 1 "$1, after $MAX_RESTARTS restarts" "Raise MAX_RESTARTS"
    echo "mpicoll: job $SLURM_JOB_ID: $1: requeued" >&2
    scontrol requeue "$SLURM_JOB_ID" && exec sleep 300 # until SLURM ends this job
    stop 1 "$1, and it cannot be requeued" "Submit it again: it goes on from its checkpoint"
}

give_up() { # give_up STATUS WHAT REMEDY: stop, unless a node is to blame
    timeout 60 srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --mpi=none true || requeue "a node was lost"
    stop "$@"
}

left() { # the nodes that SLURM has not taken from this job
    local list
    list=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) && scontrol show hostnames "$list"
}

taken() { # taken NODE …: whether SLURM has taken one of them from this job
    local there
    there=$(left) && [ -n "$there" ] && printf '%s\n' "$@" | grep --quiet --invert-match --line-regexp --fixed-strings "$there"
}

answering() { # answering NODE …: those that answer
    local node
    for node; do
        timeout 60 srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" --mpi=none true &> /dev/null && echo "$node" &
    done
    wait
}

watch() { # watch PROCESS: end a launcher that stays, though all is done, or though SLURM has taken one of its nodes away
    until [ -s "$DONE" ] || taken $nodes; do sleep 20; done
    sleep 10
    pkill -KILL --parent "$1"
    kill -KILL "$1"
}

guard() { # on another node: with --no-kill SLURM keeps a job that has lost this node, and with it its script
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$(sed -n 2p <<< "$nodes")" --mpi=none bash -c "$(declare -f left taken)"'
        until taken "$0"; do sleep 20; done; scontrol requeue "$SLURM_JOB_ID"' "$SLURMD_NODENAME"
}

fewer() { # whether nodes were lost and it can go on without them: launch=(…) then starts it there
    local before=$NODES
    [ -n "$ELASTIC" ] || return
    nodes=$(answering $(left))
    NODES=$(wc -w <<< "$nodes")
    [ "$NODES" -lt "$before" ] || return
    ranks=$((ranks / before * NODES))
    [ -z "$asked" ] && [ "$NODES" -ge "$ELASTIC" ] && [ "$ranks" -gt 1 ] || requeue "nodes were lost, $NODES left"
    echo "mpicoll: job $SLURM_JOB_ID: nodes were lost: begins again on $NODES, from the last checkpoint" >&2
    compose "$LAUNCHER"
}

work() { # work COMMAND …: run it; whether it wrote $DONE
    "${launch[@]}" "$@" < /dev/null &
    child=$!
    local helpers=()
    [ -z "$ELASTIC" ] || for helper in "watch $child" guard; do
        $helper < /dev/null &> /dev/null & disown
        helpers+=($!)
    done
    while interrupted=; wait "$child"; status=$?; [ -n "$interrupted" ]; do :; done # a trap ends wait, not the child
    [ -z "$ELASTIC" ] || kill "${helpers[@]}"
    [ -s "$DONE" ] # exit statuses do not tell. quirk: status-of-a-lost-node
}

run() {
    local status child asked= interrupted launcher met= ranks=$((SLURM_NTASKS * NODES / SLURM_NNODES))
    for launcher in ${LAUNCHER/auto/srun mpirun}; do
        compose "$launcher"
        meet && met=$launcher && break
        echo "mpicoll: the ranks did not meet under: ${launch[*]}"
    done
    [ -n "$met" ] || give_up 1 "the ranks did not meet under LAUNCHER=$LAUNCHER" "See above; PMI=$PMI, VENV=$VENV and \
$JOBS/env.sh say how they start, and \`srun --mpi=list\` what there is"
    LAUNCHER=$met
    rm -f "$DONE"
    # all launchers hand USR1 on to the ranks, which write a checkpoint and end
    trap 'asked=USR1 interrupted=yes; kill -USR1 "$child"' USR1
    trap 'asked=TERM interrupted=yes; kill -USR1 "$child"' TERM
    until work "$@"; do fewer || break; done
    trap - USR1 TERM
    [ ! -s "$DONE" ] || return 0
    [ "$asked" != USR1 ] || [ "$status" != 0 ] || requeue "time is nearly up, a checkpoint is written"
    [ "$status" != 0 ] || status=1
    give_up "$status" "$* ended without its result $DONE" "All nodes answer, so it is not started again; see above"
}

: "${NODES:=$SLURM_NNODES}" "${SLURM_NTASKS:=$SLURM_NNODES}" "${MAX_RESTARTS:=20}" "${DONE:=$OUT/done}" "${ELASTIC:=0}"
[ "$ELASTIC" != 0 ] || ELASTIC=
export DONE SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun no longer takes it from sbatch
. "$JOBS/env.sh" || stop 1 "$JOBS/env.sh failed" "See above"
mkdir -p "$OUT" || stop 1 "OUT=$OUT: cannot be made" "Name a directory that all nodes share"
echo "mpicoll: job $SLURM_JOB_ID: restart ${SLURM_RESTART_COUNT:-0} of at most $MAX_RESTARTS, on $SLURM_JOB_NODELIST"
[ "${SLURM_RESTART_COUNT:-0}" -le "$MAX_RESTARTS" ] || stop 1 "more than $MAX_RESTARTS restarts" "Raise MAX_RESTARTS"
choose
