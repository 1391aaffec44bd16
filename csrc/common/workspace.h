// Errors, which bindings.cpp passes to Python as exceptions, and the memory of a call.
#pragma once

#include <cstddef>
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

// Splits one block of memory, allocated by torch, into aligned arrays. With a null base it only
// counts, so the same code computes the size and hands out the pointers.
class Arena {
  public:
    explicit Arena(void* base = nullptr) : base_(static_cast<char*>(base)) {}

    template <typename T>
    T* take(int64_t count) {
        const int64_t at = used_;
        used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
        return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
    }

    int64_t used() const { return used_; }

  private:
    static constexpr int64_t kAlign = 256;  // what torch and CUDA align their own blocks to
    char* base_;
    int64_t used_ = 0;
};

}  // namespace paddle_ext
