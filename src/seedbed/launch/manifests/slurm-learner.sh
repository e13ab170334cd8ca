#!/bin/bash
# The learner of {{name}}, written by 'seedbed manifest slurm' and submitted by submit.sh.
#SBATCH --job-name={{name}}-learner
#SBATCH --nodes={{hosts}}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={{cores}}
#SBATCH --gpus-per-node={{gpus}}
#SBATCH --mem={{memory}}G
#SBATCH --time={{time}}
#SBATCH --output={{run}}/logs/learner.slurm
#SBATCH --open-mode=append
#SBATCH --requeue
# Three minutes before the time is up it saves its state, and ends with 75.
#SBATCH --signal=TERM@180

{{rendezvous}}
# Since 22.05 srun asks for one core of a task unless it is told of the others.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
learn() {
  ended=
  trap 'ended=1' TERM  # the learner has it too, saves its state and ends with 75
  for _ in 1 2 3 4; do
    {{learner}}
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
elif [ "$status" -ne 0 ] && [ "$status" -ne 4 ] && [ -s {{run}}/logs/actors.job ]; then
  scancel "$(cat {{run}}/logs/actors.job)"  # they would wait for it for ever
fi
exit "$status"
