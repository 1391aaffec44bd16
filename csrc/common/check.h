// Native code reports errors as exceptions; bindings.cpp passes them to Python.
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

// A workspace measured under other settings would overflow.
inline void require_workspace(int64_t bytes, int64_t needed) {
    require(bytes >= needed, "workspace must have ", needed, " bytes, got ", bytes);
}

}  // namespace paddle_ext
