// `values` on the CPU: one thread reads the labels, all of them the numbers.

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/parallel.h"
#include "common/values.h"

namespace paddle_ext {

namespace {

// K if the labels are in [0, K) and every class has one; else 0. `seen` has S marks.
int64_t classes_of(const int64_t* labels, int64_t S, char* seen) {
    std::fill_n(seen, S, 0);
    int64_t most = -1, count = 0;
    for (int64_t s = 0; s < S; ++s) {
        const int64_t label = labels[s];
        if (label < 0 || label >= S) return 0;  // K classes have at least K rows
        most = std::max(most, label);
        count += 1 - seen[label];
        seen[label] = 1;
    }
    return count == most + 1 ? count : 0;
}

bool all_within(const char* at, int64_t bytes, const Within& within) {
    constexpr int kWords = 8;  // independent of each other, so that they overlap
    constexpr int64_t kSize = 8 * kWords;
    uint64_t beyond[kWords] = {}, word;
    for (; bytes >= kSize; at += kSize, bytes -= kSize) {
        for (int i = 0; i < kWords; ++i) {
            std::memcpy(&word, at + 8 * i, 8);
            beyond[i] |= within.beyond(word);
        }
    }
    for (; bytes > 0; at += 8, bytes -= 8) {
        word = 0;
        std::memcpy(&word, at, size_t(std::min(bytes, int64_t(8))));
        beyond[0] |= within.beyond(word);
    }
    for (const uint64_t each : beyond) beyond[0] |= each;
    return (beyond[0] & within.sign) == 0;
}

}  // namespace

void run_cpu(const ValuesParams& p, int threads) {
    const Within within(p.dtype, p.most);
    std::atomic<bool> good{true};
    for (int i = 0; i < kValuesArrays; ++i) {
        constexpr int64_t kBytes = 1 << 17;  // handed to a thread at once
        const char* const from = static_cast<const char*>(p.numbers[i]);
        const int64_t bytes = p.counts[i] * Within::bytes_of(p.dtype);
        const int64_t parts = (bytes + kBytes - 1) / kBytes;
        const Sharing sharing = share_threads(parts, threads, double(kBytes) / 4, 0);
        share_tasks(parts, sharing, [&](int64_t part, int, int) {
            const int64_t first = part * kBytes;
            if (!all_within(from + first, std::min(kBytes, bytes - first), within)) good = false;
        });
    }
    std::vector<char> seen(size_t(p.S));
    int64_t least = INT64_MAX, most = 0;
    for (int64_t task = 0; task < p.B && good; ++task) {
        const int64_t K = classes_of(p.labels + task * p.S, p.S, seen.data());
        least = std::min(least, K);
        most = std::max(most, K);
    }
    p.found[0] = good ? least : 0;
    p.found[1] = -most;
}

}  // namespace paddle_ext
