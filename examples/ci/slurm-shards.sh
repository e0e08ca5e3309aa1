#!/usr/bin/env bash
# A suite in eight jobs of a Slurm array. Each asks its shard; a job that waits for all of them puts the answers together and judges.
#
#   slurm-shards.sh RUNS    # RUNS: a folder that all nodes see and that does not exist yet
#
# Run on a login node this submits the array and the job behind it; Slurm then runs it again on the nodes.
set -euo pipefail

shards=8
options=(--config kvgauge.toml --suite nightly)
runs=${1:?usage: slurm-shards.sh RUNS}

shard() {
    # Not SLURM_ARRAY_TASK_COUNT: it is 1 when a single task is submitted again.
    kvgauge check "${options[@]}" --shard "$SLURM_ARRAY_TASK_ID/$shards" --run-dir "$runs/shard-$SLURM_ARRAY_TASK_ID"
}

judge() {
    kvgauge merge "$runs/run" "$runs"/shard-*
    kvgauge report "$runs/run"
    kvgauge gate "$runs/run" --on-inconclusive fail
}

submit() {
    mkdir "$runs"
    array=$(sbatch --parsable --job-name=kvgauge --array="1-$shards" --gres=gpu:1 --time=04:00:00 --requeue \
        --output="$runs/shard-%a.log" "$0" "$runs")
    sbatch --job-name=kvgauge-judge --dependency="afterok:$array" --time=00:30:00 --output="$runs/judge.log" \
        "$0" "$runs"
}

if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    shard
elif [ -n "${SLURM_JOB_ID:-}" ]; then
    judge
else
    submit
fi
