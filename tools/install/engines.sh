#!/usr/bin/env bash
# The tests that need large libraries, in environments of their own, as no other run has them: Ray and
# Spark with the examples for large data, and the encoders of images and texts. Spark needs Java.
#
#   make test-engines ENGINES="ray"    # only some of them
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
folder=$PWD/build/engines
mkdir -p "$folder"

declare -A extras=([ray]=ray [spark]=spark [encoders]=clip,open-clip,text)
declare -A tests=(
    [ray]="tests/integrations/test_batch_engines.py -k not(spark)"
    [spark]="tests/integrations/test_batch_engines.py -k not(ray)"
    [encoders]="tests/app/classify tests/test_examples.py"
)

declare -A needs=(
    [ray]=ray
    [spark]="pyspark|Java"
    [encoders]="transformers|open_clip|sentence|gt-all"
)

if ! wheel=$(ls "$folder"/dist/*.whl 2>/dev/null) || [[ -n $(find csrc paddle_ext -newer "$wheel" -type f -not -name '*.pyc') ]]; then
    rm -rf "$folder/dist"
    "$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir "$folder/dist" .
    wheel=$(ls "$folder"/dist/*.whl)
fi

failed=()
for name in ${ENGINES:-ray spark encoders}; do
    echo "== $name"
    environment=$folder/$name
    [[ -x $environment/bin/python ]] || "$python" -m venv "$environment"
    pip=("$environment/bin/python" -m pip --disable-pip-version-check install --quiet -c constraints.txt)
    "${pip[@]}" "${wheel}[test,${extras[$name]}]"
    "${pip[@]}" --no-deps --force-reinstall "$wheel"
    # Spark starts Java and compiles its queries: minutes, where cores are shared with other work.
    # A test skipped for want of what this environment is made for has not passed.
    # shellcheck disable=SC2086
    { env -u PYTHONPATH OMP_NUM_THREADS=1 "$environment/bin/python" -P -m pytest -rs -p no:cacheprovider --timeout 1100 ${tests[$name]} \
        ${TEST_ARGS:-} | tee "$folder/$name.log" && ! grep -E "SKIPPED.*needs (${needs[$name]})" "$folder/$name.log"; } ||
        failed+=("$name")
done
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
