#include <cassert>
#include <cstdio>

__device__ const char* names[2] = {"ab", "cd"};

/// printf of every kind of argument, and an assertion that holds for n > 0.
extern "C" __global__ void printing(int n) {
  assert(n > 0);
  printf("lane %u of %s: %.2f %d %c %lld\n", threadIdx.x, names[0], 2.5, -7, 'c', 12345678901ll);
}
