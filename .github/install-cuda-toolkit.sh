#!/usr/bin/env bash
# Put a CUDA compiler into FOLDER, as FOLDER/nvidia/cu13/bin/nvcc, with the pip of PYTHON.
#   .github/install-cuda-toolkit.sh FOLDER [PYTHON]
set -euo pipefail
folder=$1
python=${2:-python3}
"$python" -m pip install --quiet --no-deps --upgrade --target "$folder" \
    -r "$(dirname "${BASH_SOURCE[0]}")/cuda-toolkit.txt"
# nvcc looks for libraries in lib64, which the packages do not have.
ln -sfn lib "$folder/nvidia/cu13/lib64"
"$folder/nvidia/cu13/bin/nvcc" --version | tail -n 2
