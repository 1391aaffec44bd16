// Errors leave native code as exceptions; bindings.cpp hands them to Python.
#pragma once

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

}  // namespace paddle_ext
