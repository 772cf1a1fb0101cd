#pragma once

/// PTX ISA, Parallel Synchronization and Communication Instructions: griddepcontrol.
namespace mxfa::ptx {

/// Kernels launched as programmatic dependents may start once all blocks have said this or exited.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Until the kernels that this one depends on are complete and their writes visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace mxfa::ptx
