#!/bin/bash
# A Ray node on each host of a SLURM job, and a program on the first one:
#
#     sbatch examples/slurm/ray.sh python examples/sft.py --mode ray --workers 16 --checkpoints /shared/run
#
#SBATCH --job-name=twinkle
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@600
set -euo pipefail

addresses=$(hostname -I)
head=${addresses%% *}:6379  # this script runs on the first host

# Other jobs reach these ports: Ray's processes answer to this token alone.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600  # seconds; imports from a shared disk are slow
export RAY_gcs_rpc_server_reconnect_timeout_s=20           # seconds after the first host's Ray until the others' ends

# The warning before the end: the program saves and ends when this file exists.
export STOP_FILE=/tmp/twinkle-stop-$SLURM_JOB_ID
rm -f "$STOP_FILE"
trap 'touch "$STOP_FILE"' USR1

srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray symmetric-run --address "$head" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats \
    -- env RAY_ADDRESS="$head" "$@" &
step=$!
code=0
wait "$step" || code=$?
while kill -0 "$step" 2>/dev/null; do  # the signal ended the wait, not the step
    code=0
    wait "$step" || code=$?
done

if ((code != 0)); then
    logs=$SLURM_SUBMIT_DIR/ray-logs-$SLURM_JOB_ID
    echo "the program ended with $code; Ray's logs of each host: $logs" >&2
    # shellcheck disable=SC2016  # each host expands it
    srun --ntasks-per-node=1 bash -c 'mkdir -p "$0/$(hostname)" &&
        cp -r "${RAY_TMPDIR:-/tmp}/ray/session_latest/logs/." "$0/$(hostname)"' "$logs"
elif [[ -e $STOP_FILE ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
