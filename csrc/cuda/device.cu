#include "cuda/device.cuh"

#include "common/params.h"

namespace paddle_ext {

DeviceGuard::DeviceGuard(int device) : device_(device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    if (device_ != before_) check_cuda(cudaSetDevice(device_), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
    if (device_ != before_) cudaSetDevice(before_);
}

int driver_version() {
    int version = 0;
    check_cuda(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return version;
}

}  // namespace paddle_ext
