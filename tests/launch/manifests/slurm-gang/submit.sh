#!/bin/bash
# Submits catch: written by 'seedbed manifest slurm'.
# The jobs have the environment of this shell: 'seedbed' has to be found there. Every machine shares the run folder.
set -euo pipefail
here=$(dirname -- "$0")
mkdir -p /scratch/gang/logs
rm -f /scratch/gang/logs/actors.job
learner=$(sbatch --parsable "$here/learner.sh")
echo "learner: job $learner"
