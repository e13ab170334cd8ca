#!/bin/bash
# The learner of catch, written by 'seedbed manifest slurm' and submitted by submit.sh.
#SBATCH --job-name=catch-learner
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=6
#SBATCH --mem=16G
#SBATCH --time=01:30:00
#SBATCH --output=/scratch/gang/logs/learner.slurm
#SBATCH --open-mode=append
#SBATCH --requeue
# Three minutes before the time is up it saves its state, and ends with 75.
#SBATCH --signal=TERM@180

COORDINATOR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):5700"; export COORDINATOR
learn() {
  exec seedbed train toy:catch --preset none --arch sebulba --agent ppo --run-dir /scratch/gang --begin-or-resume --no-video --network mlp --hidden 16 --envs-per-actor 4 --lag free --hosts 2 --unroll-length 5 --batch-size 8 --host "$SLURM_PROCID" --coordinator "$COORDINATOR"
}
export -f learn
srun --kill-on-bad-exit=0 bash -c learn
status=$?
# 75: interrupted, with its state saved, or its store is away; the same command goes on.
if [ "$status" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
