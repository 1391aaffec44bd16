#!/usr/bin/env bash
# Put a CUDA compiler into FOLDER, as FOLDER/bin/nvcc.
#   .github/install-cuda-toolkit.sh 12.9|13.0 FOLDER
set -euo pipefail
version=$1
folder=$2
list=$(realpath "$(dirname "${BASH_SOURCE[0]}")/cuda-$version.txt")
mkdir -p "$folder"
cd "$folder"
if [ "$version" = 13.0 ]; then
    python3 -m pip install --quiet --no-deps --upgrade --target . -r "$list"
    ln -sfn nvidia/cu13/bin bin
    ln -sfn lib nvidia/cu13/lib64 # where nvcc looks for libraries
else
    # Before 13.0 no package has nvcc: NVIDIA's archives, by their checksums.
    [ "$(uname -m)" = aarch64 ] && platform=linux-sbsa || platform=linux-x86_64
    grep -e "-$platform-" "$list" > sums
    while read -r _ archive; do
        curl --fail --silent --show-error --location --remote-name \
            "https://developer.download.nvidia.com/compute/cuda/redist/${archive%%-*}/$platform/$archive"
    done < sums
    sha256sum --check --quiet sums
    for archive in *.tar.xz; do tar -xf "$archive" --strip-components=1; done
    rm -f -- *.tar.xz sums
    ln -sfn lib lib64
fi
bin/nvcc --version | tail -n 2
