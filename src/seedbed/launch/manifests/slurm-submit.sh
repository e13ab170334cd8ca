#!/bin/bash
# Submits {{name}}: written by 'seedbed manifest slurm'.
# The jobs have the environment of this shell: 'seedbed' has to be found there. Every machine shares the run folder.
set -euo pipefail
here=$(dirname -- "$0")
mkdir -p {{run}}/logs
rm -f {{run}}/logs/actors.job
learner=$(sbatch --parsable "$here/learner.sh")
echo "learner: job $learner"
{{actor_jobs}}# A minute after the learner has begun: by then a run that goes on is no longer taken for one that is over.
{{actor_jobs}}if ! actors=$(sbatch --parsable --dependency="after:${learner%%;*}+1" "$here/actor.sh"); then
{{actor_jobs}}  scancel "${learner%%;*}"  # it would wait for them for ever
{{actor_jobs}}  exit 1
{{actor_jobs}}fi
{{actor_jobs}}echo "${actors%%;*}" >{{run}}/logs/actors.job
{{actor_jobs}}echo "actors: job $actors"
{{actor_jobs}}echo "to end it: scancel ${learner%%;*} ${actors%%;*}"
