#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The documentation: its programs run and agree in five languages, its guides run, the site builds
# without a warning, no link is broken, nothing comes from another host.  .github is in form.
#   tests/docs.sh <build folder>     FOVEA_LIBRARY and FOVEA_LIB_DIR name the library
# What is missing here is left out and said; FOVEA_REQUIRE_ALL=1 makes that a failure.
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
python=${FOVEA_DOCS_PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
fail() { echo "docs: $*" >&2; exit 1; }
missing() { # what, what is left out
  [ -z "${FOVEA_REQUIRE_ALL:-}" ] || fail "FOVEA_REQUIRE_ALL is set and $1 is missing"
  echo "docs: SKIPPED $2: $1 is missing"
}
export CARGO_TARGET_DIR=$build/rust
"$python" tools/docs_run.py "$build/docs"

if ! "$python" -c 'import material' 2>/dev/null; then
  missing "mkdocs-material" "the site"
  exit 0
fi
"$python" tools/docs_github.py
FOVEA_DOCS_FOLDER=$build/docs/web FOVEA_DOCS_PYTHON=$python tools/docs

# A link that leads nowhere and a script of another host are noticed.
broken=$build/docs/broken
rm -rf "$broken"
cp -r "$build/docs/web/site" "$broken"
sed -i '0,/<body/s//<script src="https:\/\/example.invalid\/x.js"><\/script><a href="nowhere.html"><\/a>\n&/' "$broken/index.html"
said=$("$python" tools/docs_check.py "$broken" 2>&1) && fail "the check passes a broken site"
for words in "index.html loads https://example.invalid/x.js" "index.html links to nowhere.html"; do
  [[ $said == *"$words"* ]] || fail "the check does not say: $words"
done

if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
  "$python" tools/docs_check.py "$build/docs/web/site" --browser
else
  missing "chromium or chromedriver" "the look at the pages"
fi
