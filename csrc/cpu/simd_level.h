// The SIMD level that the CPU code uses.
#pragma once

#include <string>
#include <vector>

namespace paddle_ext {

std::string simd_level();
std::vector<std::string> simd_levels();  // usable on this machine, best last
void set_simd_level(const std::string& name);

}  // namespace paddle_ext
