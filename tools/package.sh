#!/usr/bin/env bash
# Packs a built binary the way release installers expect it: kvgauge-TARGET.tar.xz with one folder, and its SHA-256 beside it.
# usage: tools/package.sh BINARY TARGET FOLDER
set -euo pipefail

binary=$(realpath "${1:?a built kvgauge}")
target=${2:?a target triple}
folder=${3:?where to put the archive}
cd "$(dirname "$0")/.."

name=kvgauge-$target
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/$name/completions" "$folder"
install -m 755 "$binary" "$staging/$name/kvgauge"
install -m 644 README.md CHANGELOG.md LICENSE "$staging/$name/"
for shell in bash zsh fish powershell elvish; do
    "$binary" completions "$shell" >"$staging/$name/completions/kvgauge.$shell"
done
"$binary" man >"$staging/$name/kvgauge.1"

tar -cJf "$folder/$name.tar.xz" -C "$staging" "$name"
cd "$folder"
if command -v sha256sum >/dev/null; then
    sha256sum "$name.tar.xz" >"$name.tar.xz.sha256"
else
    shasum -a 256 "$name.tar.xz" >"$name.tar.xz.sha256"
fi
