#!/usr/bin/env bash
# Runs `kvgauge check` and says what came of it. A verdict is no failure of this step: the report has to be uploaded first, and a
# later step exits with the code. KVGAUGE_RUN_DIR is read by kvgauge itself.
set -euo pipefail

run_dir=${KVGAUGE_RUN_DIR:?}
if [ -e "$run_dir" ]; then
    echo "::error title=kvgauge::the run folder $run_dir exists: its answers would be taken for this build's; give the job another"
    exit 2
fi
read -r -a arguments <<<"${KVGAUGE_CHECK_ARGS:-}"

code=0
kvgauge check ${arguments[@]+"${arguments[@]}"} || code=$?

verdict=
if [ -f "$run_dir/comparison.json" ]; then
    verdict=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"]["ruling"])' "$run_dir/comparison.json")
fi
{
    echo "exit-code=$code"
    echo "verdict=$verdict"
    for name in report:report.html summary:summary.md; do
        file=$run_dir/${name#*:}
        if [ -f "$file" ]; then echo "${name%%:*}=$file"; fi
    done
} >>"${GITHUB_OUTPUT:?}"
