#!/bin/bash
# A process of one program for each GPU of a SLURM job, without a cluster:
#
#     sbatch examples/slurm/torchrun.sh examples/sft.py --workers 16 --checkpoints /shared/run
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
set -euo pipefail

addresses=$(hostname -I)
head=${addresses%% *}:29500  # this script runs on the first host

export PYTHONHASHSEED=0                        # each process builds what comes of a set of texts in the same order
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1    # processes that start again do not find the addresses of those before

srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$head" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    "$@"
