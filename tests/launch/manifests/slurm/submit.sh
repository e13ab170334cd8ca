#!/bin/bash
# Submits catch: written by 'seedbed manifest slurm'.
# The jobs have the environment of this shell: 'seedbed' has to be found there. Every machine shares the run folder.
set -euo pipefail
here=$(dirname -- "$0")
mkdir -p /scratch/catch/logs
rm -f /scratch/catch/logs/actors.job
learner=$(sbatch --parsable "$here/learner.sh")
echo "learner: job $learner"
# A minute after the learner has begun: by then a run that goes on is no longer taken for one that is over.
if ! actors=$(sbatch --parsable --dependency="after:${learner%%;*}+1" "$here/actor.sh"); then
  scancel "${learner%%;*}"  # it would wait for them for ever
  exit 1
fi
echo "${actors%%;*}" >/scratch/catch/logs/actors.job
echo "actors: job $actors"
echo "to end it: scancel ${learner%%;*} ${actors%%;*}"
