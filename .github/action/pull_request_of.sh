#!/usr/bin/env bash
# Number of the open pull request whose head is $1. The event of a `workflow_run` names none for forks, and a number in an artifact
# could be anybody's; the commit is GitHub's own word.
set -euo pipefail

sha=${1:?a commit}
case $sha in
    *[!0-9a-f]* | '')
        echo "::error title=kvgauge::\`$sha\` is no commit" >&2
        exit 2
        ;;
esac
gh api --paginate "repos/${GITHUB_REPOSITORY:?}/pulls?state=open&per_page=100" \
    --jq ".[] | select(.head.sha == \"$sha\") | .number" | head -n 1
