#!/usr/bin/env bash
# Puts `kvgauge` on the path of the following steps: a release, checked against its published hash, or a build.
set -euo pipefail

release=${KVGAUGE_RELEASE:-latest}
tools=${RUNNER_TOOL_CACHE:-${RUNNER_TEMP:?}}/kvgauge
mkdir -p "$tools"

target() {
    case "$(uname -s)/$(uname -m)" in
        Linux/x86_64) echo x86_64-unknown-linux-gnu ;;
        Linux/aarch64) echo aarch64-unknown-linux-gnu ;;
        Darwin/arm64) echo aarch64-apple-darwin ;;
        Darwin/x86_64) echo x86_64-apple-darwin ;;
        *) return 1 ;;
    esac
}

if [ "$release" = source ]; then
    cargo install --locked --path "${KVGAUGE_SOURCE:?}" --root "$tools"
    found=$tools/bin
else
    if ! target=$(target); then
        echo "::error title=kvgauge::no release is built for $(uname -s) on $(uname -m); use \`version: source\`"
        exit 2
    fi
    archive=kvgauge-$target.tar.xz
    download=$(mktemp -d "${RUNNER_TEMP:?}/kvgauge.XXXXXX")
    tag=()
    [ "$release" = latest ] || tag=("$release")
    gh release download ${tag[@]+"${tag[@]}"} --repo "${KVGAUGE_REPOSITORY:?}" --dir "$download" \
        --pattern "$archive" --pattern "$archive.sha256"
    # The file names its archive without a folder. Where a tool is missing, an unchecked binary must not run.
    if command -v sha256sum >/dev/null; then
        (cd "$download" && sha256sum --check --strict "$archive.sha256")
    else
        (cd "$download" && shasum -a 256 --check "$archive.sha256")
    fi
    tar -xJf "$download/$archive" -C "$tools"
    found=$tools/kvgauge-$target
fi

echo "$found" >>"${GITHUB_PATH:?}"
"$found/kvgauge" --version
