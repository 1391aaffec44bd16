// The threads that solve one task together: a block, or several that are resident at the same time,
// which a cooperative launch guarantees.
#pragma once

#include <cstdint>

#include "cuda/device.cuh"

namespace paddle_ext {

constexpr int64_t kMostTeamBlocks = 16;  // a task has parts that every block of a team repeats

// What the blocks of a team share, in global memory; zero at the start.
struct TeamMemory {
    unsigned arrived;  // blocks, counted over all barriers
    unsigned most[3];  // one for each of three consecutive exchanges
};

class Team {
  public:
    int thread, threads;  // of this thread, counted over all blocks, and of the team

    // One block.
    __device__ Team() : thread(int(threadIdx.x)), threads(int(blockDim.x)) {}

    // Block `rank` of `blocks`.
    __device__ Team(TeamMemory* memory, int rank, int blocks)
        : thread(rank * int(blockDim.x) + int(threadIdx.x)), threads(blocks * int(blockDim.x)),
          memory_(memory), blocks_(blocks) {}

    // Waits for all threads; what they wrote to global memory is then visible to all.
    __device__ void sync() {
        __syncthreads();
        if (blocks_ == 1) return;
        if (threadIdx.x == 0) {
            goal_ += unsigned(blocks_);
            __threadfence();
            atomicAdd(&memory_->arrived, 1u);
            while (int(load(&memory_->arrived) - goal_) < 0) {
            }
            __threadfence();
        }
        __syncthreads();
    }

    // The largest number of the team; waits like sync().
    __device__ unsigned most(unsigned value) {
        __shared__ unsigned of_block;
        __syncthreads();  // the previous result has been read
        if (threadIdx.x == 0) of_block = 0;
        __syncthreads();
        value = __reduce_max_sync(0xffffffffu, value);
        if (threadIdx.x % 32 == 0) atomicMax(&of_block, value);
        __syncthreads();
        if (blocks_ == 1) return of_block;
        unsigned* const slot = memory_->most + exchange_;
        if (threadIdx.x == 0) atomicMax(slot, of_block);
        sync();
        if (threadIdx.x == 0) of_block = load(slot);
        // All blocks have read the slot before this one, and none uses it before the next barrier.
        exchange_ = (exchange_ + 1) % 3;
        if (thread == 0) memory_->most[(exchange_ + 1) % 3] = 0;
        __syncthreads();
        return of_block;
    }

    __device__ bool any(bool flag) {
        return blocks_ == 1 ? __syncthreads_or(flag) : most(flag) != 0;
    }

  private:
    __device__ static unsigned load(const unsigned* from) {
        return *static_cast<const volatile unsigned*>(from);
    }

    TeamMemory* memory_ = nullptr;
    int blocks_ = 1;
    unsigned goal_ = 0;
    int exchange_ = 0;
};

// Blocks of the team of each task: one, or if that leaves the device idle several, at most as many
// as are `useful`.
template <typename... Parameters>
int team_blocks(void (*kernel)(Parameters...), int64_t tasks, int64_t useful, int threads,
                int64_t bytes) {
    allow_all_shared(kernel);
    const int64_t room =
        resident_blocks(kernel, threads, bytes) * device_attribute(cudaDevAttrMultiProcessorCount);
    return int(max(min(min(room / tasks, useful), kMostTeamBlocks), int64_t(1)));
}

// Launches kernel(arguments.., blocks) with team_blocks() blocks for each task.
template <typename... Parameters, typename... Arguments>
void launch_teams(const char* name, void (*kernel)(Parameters...), int64_t tasks, int64_t useful,
                  int threads, int64_t bytes, TeamMemory* memory, cudaStream_t stream,
                  const Arguments&... arguments) {
    const int blocks = team_blocks(kernel, tasks, useful, threads, bytes);
    if (blocks == 1) return launch(name, kernel, tasks, threads, bytes, stream, arguments..., 1);
    fill_bytes(memory, 0, int64_t(sizeof(TeamMemory)) * tasks, stream);
    launch_together(name, kernel, tasks * blocks, threads, bytes, stream, arguments..., blocks);
}

}  // namespace paddle_ext
