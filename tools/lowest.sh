#!/usr/bin/env bash
# Tests with the lowest versions that the packages declare: what needs no cluster, and the README's loop on Ray.
# `make test-lowest` runs it with the path of uv.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1

environment() { # folder, and options of the installation
    "$uv" venv --quiet --allow-existing --python python3.11 "$1"
    "$uv" pip install --quiet --python "$1/bin/python" --resolution lowest-direct "${@:2}" \
        --group dev --editable ".[demo,http]" $(printf -- '--editable %s ' packages/*)
}
tests() { # environment, and what it runs
    "$1/bin/python" -m pytest --numprocesses 2 --dist loadfile -m "not (packaging or ray)" "${@:2}"
}

# A loader alone works with an older torch than Ray's workers and engines.
mkdir -p .cache
sed -nE 's/.*"torch>=([0-9.]+)".*/torch==\1/p' packages/twinkle-data/pyproject.toml > .cache/torch-of-data.txt
environment .cache/lowest-data --override .cache/torch-of-data.txt
tests .cache/lowest-data tests/data

environment .cache/lowest
tests .cache/lowest tests/mesh tests/remote tests/data tests/http tests/engines tests/twinkle
.cache/lowest/bin/python -m pytest tests/twinkle/test_readme.py -k test_example_runs
