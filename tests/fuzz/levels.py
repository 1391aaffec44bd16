"""Prints the SIMD levels of this machine, one on a line; `--simd LEVEL` of a fuzzer takes one."""

import sys

from paddle_ext.native import load as native

if __name__ == "__main__":
    sys.stdout.write("".join(f"{level}\n" for level in native.build_info()["simd_levels"]))
