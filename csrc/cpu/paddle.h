// The solver on the CPU, and the SIMD level it uses.
#pragma once

#include <string>
#include <vector>

#include "common/params.h"

namespace paddle_ext {

int64_t paddle_cpu_workspace(const PaddleParams& params, int threads);
void paddle_cpu(const PaddleParams& params, int threads);

std::string simd_level();
std::vector<std::string> simd_levels();  // usable on this machine, best last
void set_simd_level(const std::string& name);

}  // namespace paddle_ext
