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
# Since 22.05 srun asks for one core of a task unless it is told of the others.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
learn() {
  ended=
  trap 'ended=1' TERM  # the learner has it too, saves its state and ends with 75
  for _ in 1 2 3 4; do
    seedbed train toy:catch --preset none --arch sebulba --agent ppo --run-dir /scratch/gang --begin-or-resume --no-video --network mlp --hidden 16 --envs-per-actor 4 --lag free --hosts 2 --unroll-length 5 --batch-size 8 --host "$SLURM_PROCID" --coordinator "$COORDINATOR"
    status=$?
    case "$status" in
      # The run is over, a setting is wrong, another session goes on with the run, it was interrupted.
      0 | 2 | 4 | 75) break ;;
    esac
    # Else a failure: once more; or the time is up, and it was ended before it could say so.
    [ -z "$ended" ] || { status=75 && break; }
  done
  exit "$status"
}
export -f learn
srun --kill-on-bad-exit=0 bash -c learn
status=$?
# 75: interrupted, with its state saved, or its store is away; the same command goes on.
if [ "$status" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
elif [ "$status" -ne 0 ] && [ "$status" -ne 4 ] && [ -s /scratch/gang/logs/actors.job ]; then
  scancel "$(cat /scratch/gang/logs/actors.job)"  # they would wait for it for ever
fi
exit "$status"
