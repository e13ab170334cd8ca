#!/bin/bash
# Submits catch: written by 'seedbed manifest slurm'.
# The jobs have the environment of this shell: 'seedbed' has to be found there. Every machine shares the run folder.
set -euo pipefail
here=$(dirname -- "$0")
mkdir -p /scratch/gang/logs
learner=$(sbatch --parsable "$here/learner.sh")
echo "learner: job $learner"
