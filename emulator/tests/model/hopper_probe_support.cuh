#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "hopper_inputs.h"

/// What the parts of the probe share: device buffers and the output line.
namespace {

using Words = std::vector<std::uint32_t>;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

class Buffer {
 public:
  explicit Buffer(const Words& words) : count_(words.size()) {
    check(cudaMalloc(&data_, 4 * count_), "cudaMalloc");
    check(cudaMemcpy(data_, words.data(), 4 * count_, cudaMemcpyHostToDevice), "upload");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  std::uint32_t* get() { return data_; }
  Words download() {
    check(cudaDeviceSynchronize(), "kernel");
    Words words(count_);
    check(cudaMemcpy(words.data(), data_, 4 * count_, cudaMemcpyDeviceToHost), "download");
    return words;
  }

 private:
  std::uint32_t* data_ = nullptr;
  std::size_t count_;
};

void record(const std::string& name, const Words& words) {
  std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(hopper::hash(words)));
}

__device__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace
