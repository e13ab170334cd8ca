#!/bin/bash
# Actors of {{name}}, {{per_job}} in each task of the array: written by 'seedbed manifest slurm', submitted by submit.sh.
#SBATCH --job-name={{name}}-actor
#SBATCH --array=0-{{last}}
#SBATCH --nodes=1
#SBATCH --ntasks={{per_job}}
#SBATCH --cpus-per-task={{actor_cores}}
#SBATCH --mem-per-cpu={{actor_memory}}G
#SBATCH --time={{time}}
#SBATCH --output={{run}}/logs/actor-%a.slurm
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@60

# The learner's address and the token are read in the run folder, at every attempt to reach the learner.
act() {
  ended=
  trap 'ended=1' TERM  # the actor has it too, and ends with 75
  for _ in 1 2 3 4; do
    {{actor}}
    status=$?
    case "$status" in
      0 | 2 | 75) break ;;  # the run is over, a setting is wrong, the time is up; else a fault: once more
    esac
    [ -z "$ended" ] || break
  done
  # srun ends with the highest status of all: that of an actor which was killed (137) must not hide that time is up.
  [ -z "$ended" ] || [ "$status" -eq 0 ] || status=75
  [ "$status" -le 75 ] || status=1
  exit "$status"
}
export -f act
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
left=$(({{actors}} - SLURM_ARRAY_TASK_ID * {{per_job}}))
srun --kill-on-bad-exit=0 --ntasks="$((left < {{per_job}} ? left : {{per_job}}))" bash -c act
status=$?
if [ "$status" -eq 75 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
