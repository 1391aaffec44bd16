// Takes the place of the functions that torch's tensors on the CPU get their memory from (LD_PRELOAD).
// Torch may have an allocator of its own inside, of which AddressSanitizer knows nothing; these ask the
// C library, whose functions it replaces, so that every tensor has redzones around it.
#include <cstddef>
#include <cstdlib>
#include <new>

namespace c10 {

void* alloc_cpu(std::size_t bytes) {
    constexpr std::size_t kAlignment = 64;  // torch's own
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, bytes) != 0) throw std::bad_alloc();
    return memory;
}

void free_cpu(void* memory) { std::free(memory); }

}  // namespace c10
