// The SIMD level used by the CPU code.
#pragma once

#include <string>
#include <vector>

namespace paddle_ext {

std::string simd_level();
std::vector<std::string> simd_levels();  // usable on this machine, best last
void set_simd_level(const std::string& name);

}  // namespace paddle_ext
