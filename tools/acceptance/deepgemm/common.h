#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "model/tensor_map.h"
#include "mxemu/emulator.h"

/// What the programs that run kernels of DeepGEMM in the emulator share.
namespace mxfa::acceptance {

using emu::Arguments;
using emu::GlobalMemory;
using emu::LaunchOptions;
using emu::Module;
using emu::Policy;
namespace model = emu::model;

struct MapSpec {
  const void* data;
  std::uint32_t type;  ///< of cuTensorMapEncodeTiled
  int elem_bytes;
  int inner, outer;
  int box_inner, box_outer;
  int swizzle;  ///< bytes
};

model::TensorMapRecord make_map(const MapSpec& spec);

template <class T>
T* upload(GlobalMemory& memory, const std::vector<T>& values, const char* name) {
  T* data = reinterpret_cast<T*>(memory.allocate(values.size() * sizeof(T), name));
  std::memcpy(data, values.data(), values.size() * sizeof(T));
  memory.mark_initialised(data, values.size() * sizeof(T));
  return data;
}

struct Options {
  std::string ptx;
  std::string mutate;  ///< kind of what is taken away; empty: nothing
  bool check = false;
  int seeds = 20;
  int config = -1;
  int m = 400, n = 512, k = 1600;
};

/// A sum of products in double precision.
struct Expected {
  double value = 0;
  double size = 0;  ///< sum of the terms' magnitudes

  void add(double term) {
    value += term;
    size += std::fabs(term);
  }
};

/// One instance of a kernel with its operands.
struct Case {
  std::string name;
  std::string entry;
  LaunchOptions options;
  /// Launches the entry of a module and returns the number of wrong outputs.
  std::function<int(const Module&, const LaunchOptions&)> run;
};
using MakeCase = std::function<Case(const Options&, const Module&, GlobalMemory&, int index)>;

/// main() of a program that has `cases` instances. As it is called, runs one or all of them under
/// every policy, or with the hazard checker (--check), or without each of its waits (or arrivals,
/// ...) in turn (--mutate). Exit status: 0 all right, 1 wrong outputs or faults, 2 usage.
int run_program(int argc, char** argv, int cases, const MakeCase& make);

}  // namespace mxfa::acceptance
