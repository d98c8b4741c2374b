#!/usr/bin/env bash
# The wheels and source distributions of the last commit, in dist/: built twice with equal bytes, checked, and installed from
# the folder alone. `make dist` runs it with the path of uv.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(realpath "$1") work=.cache/dist
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf dist $work

# Two clones, in other folders and with other modes of files.
for mask in 022 077; do
    (umask $mask && git clone --quiet . $work/source-$mask)
    "$uv" build --quiet --all-packages --out-dir $work/built-$mask $work/source-$mask
done
diff --recursive $work/built-022 $work/built-077
cp --recursive $work/built-022 dist

"$uv" tool run --quiet twine@7.0.0 --no-color check --strict dist/*.whl dist/*.tar.gz
"$uv" tool run --quiet check-wheel-contents@0.6.3 dist/*.whl

# Other people's packages as locked, ours from the folder: a name that is not in it is an error.
python=$work/env/bin/python
"$uv" venv --quiet --python .venv/bin/python $work/env
"$uv" export --quiet --locked --no-dev --extra demo --extra http --no-emit-workspace --output-file $work/locked.txt
"$uv" pip install --quiet --python $python --require-hashes --requirement $work/locked.txt
"$uv" pip install --quiet --python $python --no-index --find-links dist "twinkle-all[demo,http]"
"$uv" pip check --quiet --python $python
(cd $work && env/bin/twinkle --version && env/bin/python -I -W error -c "import twinkle.engines as e; [getattr(e, name) for name in e.__all__]")

(cd dist && sha256sum -- *)
echo "dist/ has the distributions of $(git describe --always --tags)"
