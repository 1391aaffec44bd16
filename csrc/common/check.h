// Errors leave native code as exceptions; bindings.cpp hands them to Python.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace paddle_ext {

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
    if (condition) return;
    std::ostringstream message;
    (message << ... << parts);
    throw std::invalid_argument(message.str());
}

// A workspace that was measured under other settings than it is used with would be overrun.
inline void require_workspace(int64_t bytes, int64_t needed) {
    require(bytes >= needed, "workspace must have ", needed, " bytes, got ", bytes);
}

}  // namespace paddle_ext
