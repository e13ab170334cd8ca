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
learn() {
  exec {{learner}}
}
export -f learn
srun --kill-on-bad-exit=0 bash -c learn
status=$?
# 75: interrupted, with its state saved, or its store is away; the same command goes on.
if [ "$status" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
