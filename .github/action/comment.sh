#!/usr/bin/env bash
# Keeps one comment on a pull request: the one whose first line is kvgauge's marker is replaced, else a new one is written.
#
# The summary may come from a pull request's own code. It is data here: sent as a body, never run, and cut to what a comment holds.
set -euo pipefail

marker='<!-- kvgauge-report -->'
# A comment of more than 65,536 characters is refused as a whole.
limit=60000
summary=${KVGAUGE_SUMMARY:?}
repository=${GITHUB_REPOSITORY:?}
number=${KVGAUGE_PULL_REQUEST:?}
case $number in
    *[!0-9]* | '')
        echo "::error title=kvgauge::\`$number\` is no pull request number"
        exit 2
        ;;
esac

body=$(mktemp "${RUNNER_TEMP:?}/comment.XXXXXX")
python3 - "$summary" "$marker" "$limit" "${KVGAUGE_REPORT_URL:-}" >"$body" <<'PYTHON'
import json
import sys

path, marker, limit, url = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with open(path, encoding="utf-8", errors="replace") as file:
    text = file.read(4 * limit)
text = text.removeprefix(marker).lstrip("\n")
head = f"{marker}\n" + (f"[Full report]({url})\n\n" if url else "\n")
note = "\n\n_Shortened; the report has all._\n"
if len(head) + len(text) > limit:
    text = text[: limit - len(head) - len(note)] + note
json.dump({"body": head + text}, sys.stdout)
PYTHON

existing=$(gh api --paginate "repos/$repository/issues/$number/comments?per_page=100" \
    --jq ".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$marker\"))) | .id" | head -n 1)
if [ -n "$existing" ]; then
    gh api --method PATCH "repos/$repository/issues/comments/$existing" --input "$body" --silent
else
    gh api --method POST "repos/$repository/issues/$number/comments" --input "$body" --silent
fi
