#pragma once

#include <cstdint>

#include "exec/context.h"

/// Handlers of everything but lane kernels, and what they read from Inst::a, b, c, imm. The layout
/// of op[] follows the operand list of the opcode table: one entry an operand, two for p|q and d|p.
/// Handlers with a Warp behind the context (all here) may be called with exec::Warp only.
namespace mxfa::emu::exec {

// ---- Memory ------------------------------------------------------------------------------------
enum class MemorySpace : std::uint8_t { kGeneric, kGlobal, kConst, kShared, kLocal, kParam };

/// Inst::c of every instruction with an address operand.
struct AccessFlags {
  static constexpr std::uint8_t kWideAddress = 1;  ///< the address row has 8-byte slots
  static constexpr std::uint8_t kSigned = 2;       ///< loads extend the sign
  static constexpr std::uint8_t kWideData = 4;     ///< data rows have 8-byte slots
  static constexpr std::uint8_t kStrong = 8;       ///< volatile, relaxed, acquire, release
  static constexpr std::uint8_t kVariable = 16;    ///< the address is a variable's: imm alone
  static constexpr std::uint8_t kAcquire = 32;
  static constexpr std::uint8_t kRelease = 64;
  static constexpr std::uint8_t kCtaScope = 128;  ///< of a strong access
};

// Inst::a is the MemorySpace, b the number of elements, op[1] the address, to which imm is added.
// The data rows are lists[extra..extra + b).
template <int kBytes>
void load(Context& c, const ir::Inst& in, std::uint32_t mask);
template <int kBytes>
void store(Context& c, const ir::Inst& in, std::uint32_t mask);

enum class AtomicOp : std::uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kInc, kDec, kCas };
enum class AtomicType : std::uint8_t {
  kU32,
  kS32,
  kU64,
  kS64,
  kB16,
  kF16,
  kF16x2,
  kBF16,
  kBF16x2,
  kF32,
  kF64
};
/// op = {d or kNoOperand, address, -, c of cas}. extra = op | type << 8 | first list entry << 16;
/// the operand's rows are in the list.
void atomic(Context& c, const ir::Inst& in, std::uint32_t mask);

// op[1] = address, lists = b rows, op[2] = model::MatrixForm, op[3] = number of matrices.
void load_matrix(Context& c, const ir::Inst& in, std::uint32_t mask);
void store_matrix(Context& c, const ir::Inst& in, std::uint32_t mask);
void move_matrix(Context& c, const ir::Inst& in, std::uint32_t mask);

// ---- Registers and predicates -----------------------------------------------------------------
enum class PredOp : std::uint8_t { kAnd, kOr, kXor, kNot, kMov };
void predicate_logic(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a = PredOp
/// op[0] = d; imm = SpecialRegister.
void read_special(Context& c, const ir::Inst& in, std::uint32_t mask);
/// op[0] = d, imm = offset: an address in the CTA's own shared memory; a = slot bytes.
void shared_address(Context& c, const ir::Inst& in, std::uint32_t mask);
/// Joins b rows of lists[extra..] into op[0], or splits op[0] into them; a = bits of a part, c =
/// slot bytes of a part.
void pack_rows(Context& c, const ir::Inst& in, std::uint32_t mask);
void unpack_rows(Context& c, const ir::Inst& in, std::uint32_t mask);
void move_128(Context& c, const ir::Inst& in, std::uint32_t mask);

enum class SpecialRegister : std::uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneId,
  kWarpId,
  kNwarpId,
  kSmId,
  kNsmId,
  kGridId,
  kClock,
  kClockHi,
  kClock64,
  kGlobalTimer,
  kGlobalTimerLo,
  kGlobalTimerHi,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterCtarank,
  kClusterNctarank,
  kDynamicSmemSize,
  kTotalSmemSize,
  kCount
};

/// An approximate function of FP32 with an error within the ISA's bound: see exec/perturb.h.
void approximate(Context& c, const ir::Inst& in, std::uint32_t mask);

// ---- Lanes together ---------------------------------------------------------------------------
enum class VoteMode : std::uint8_t { kAll, kAny, kUni, kBallot };
void vote(Context& c, const ir::Inst& in, std::uint32_t mask);   ///< a = VoteMode
void match(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a = all, b = slot bytes
void active_mask(Context& c, const ir::Inst& in, std::uint32_t mask);
void elect(Context& c, const ir::Inst& in, std::uint32_t mask);
struct ReduxFlags {
  static constexpr std::uint8_t kSigned = 1;
  static constexpr std::uint8_t kFloat = 2;
  static constexpr std::uint8_t kAbs = 4;
  static constexpr std::uint8_t kNan = 8;
};
void redux(Context& c, const ir::Inst& in,
           std::uint32_t mask);  ///< a = model::ReduxOp, b = ReduxFlags

// ---- Control ----------------------------------------------------------------------------------
enum class BarrierOp : std::uint8_t { kSync, kArrive, kPopc, kAnd, kOr };
/// op = {id, count, result, predicate}; a = BarrierOp, b = aligned.
void cta_barrier(Context& c, const ir::Inst& in, std::uint32_t mask);
void cluster_barrier(Context& c, const ir::Inst& in,
                     std::uint32_t mask);  ///< a = wait, b = aligned, c = relaxed
void fence(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a, b: see exec/observer.h
void no_operation(Context& c, const ir::Inst& in, std::uint32_t mask);
void trap(Context& c, const ir::Inst& in, std::uint32_t mask);
void no_branch_target(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< op[0] = index
void call_printf(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< lists: format, arguments
void call_assert(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< lists: the 5 parameters
void set_max_registers(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a = inc
void grid_dependency(Context& c, const ir::Inst& in, std::uint32_t mask);
void map_address(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a = slot bytes, b = rank
void is_space(Context& c, const ir::Inst& in, std::uint32_t mask);     ///< a = MemorySpace

// ---- Asynchronous -----------------------------------------------------------------------------
enum class MbarrierOp : std::uint8_t {
  kInit,
  kInval,
  kExpectTx,
  kCompleteTx,
  kArrive,
  kWait,
  kPendingCount,
};
struct MbarrierFlags {
  static constexpr std::uint8_t kDrop = 1;
  static constexpr std::uint8_t kExpect = 2;  ///< the operand is a number of bytes
  static constexpr std::uint8_t kNoComplete = 4;
  static constexpr std::uint8_t kParity = 8;
  static constexpr std::uint8_t kTry = 16;      ///< may suspend the thread
  static constexpr std::uint8_t kRelaxed = 32;  ///< orders no memory
};
/// op = {result, address, operand}; extra = MbarrierOp | flags << 8.
void mbarrier(Context& c, const ir::Inst& in, std::uint32_t mask);

enum class BulkKind : std::uint8_t {
  kLoad,          ///< global to shared, completes at an mbarrier
  kStore,         ///< shared to global, bulk group
  kReduce,        ///< likewise
  kShared,        ///< shared to shared of the cluster, mbarrier
  kReduceShared,  ///< likewise
  kStoreAsync,    ///< st.async
};
/// Travels in Inst::imm. Rows: op[0] shared address, op[1] global address or tensor map (kShared:
/// the source), op[2] mbarrier, op[3] size, op[4] multicast or byte mask. lists = b coordinates, or
/// the values of st.async.
struct BulkSpec {
  BulkKind kind = BulkKind::kLoad;
  std::uint8_t rank = 0;         ///< of the tensor; 0 for plain bytes
  std::uint8_t wide = 0;         ///< bit k: op[k] has 8-byte slots
  std::uint8_t masked = 0;       ///< op[4] is there
  std::uint8_t reduce_op = 0;    ///< model::ReduceOp
  std::uint8_t reduce_type = 0;  ///< model::ReduceType
  std::uint8_t value_bytes = 0;  ///< of st.async
  std::uint8_t pair = 0;         ///< cta_group::2: the mbarrier may be the peer CTA's
};
static_assert(sizeof(BulkSpec) == 8);
void bulk_copy(Context& c, const ir::Inst& in, std::uint32_t mask);

/// a: 0 commit, 1 wait, 2 wait.read; imm = groups that may be pending; b = 1 for cp.async groups.
void async_group(Context& c, const ir::Inst& in, std::uint32_t mask);
/// op = {shared, global, -, source size}; imm = bytes, b = wide bits as in BulkSpec.
void copy_async(Context& c, const ir::Inst& in, std::uint32_t mask);
/// op[1] = mbarrier address; b = noinc.
void copy_async_arrive(Context& c, const ir::Inst& in, std::uint32_t mask);

/// clusterlaunchcontrol.try_cancel. op = {response, mbarrier} shared addresses, b = wide bits as in
/// BulkSpec, a = multicast to all CTAs of the cluster.
void cancel_launch(Context& c, const ir::Inst& in, std::uint32_t mask);
/// a: 0 is_canceled (op[0] a predicate), 1 get_first_ctaid (lists = b rows, from dimension c on);
/// op[1] = the response's row of 16 bytes.
void query_cancel(Context& c, const ir::Inst& in, std::uint32_t mask);

// ---- Tensor maps: exec/tensor_map.cc. b = wide bits as in BulkSpec.
// ------------------------------
enum class MapSpace : std::uint8_t { kGeneric, kGlobal, kShared };
/// op = {map, value}; a = model::TensorMapField, imm = ordinal, c = MapSpace.
void replace_tensor_map(Context& c, const ir::Inst& in, std::uint32_t mask);
void copy_tensor_map(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< op = {to, from}
/// op[0] = map to acquire, in 8-byte slots where c is 1; none: a release. a, b as in fence().
void fence_tensor_map(Context& c, const ir::Inst& in, std::uint32_t mask);

/// op = {descriptor or list of A, descriptor of B, scale_d}; imm = WgmmaSpec; lists = b rows of D,
/// then 4 of A where it lies in registers.
struct WgmmaSpec {
  std::uint8_t a = 0;  ///< model::WgmmaType
  std::uint8_t b = 0;
  std::uint8_t d = 0;   ///< model::AccumulatorType
  std::uint8_t n8 = 1;  ///< N / 8
  std::uint8_t flags = 0;
  std::uint8_t unused[3] = {};
  static constexpr std::uint8_t kRegistersA = 1;
  static constexpr std::uint8_t kNegateA = 2;
  static constexpr std::uint8_t kNegateB = 4;
  static constexpr std::uint8_t kTransposeA = 8;
  static constexpr std::uint8_t kTransposeB = 16;
  static constexpr std::uint8_t kSaturate = 32;
};
static_assert(sizeof(WgmmaSpec) == 8);
void wgmma_mma(Context& c, const ir::Inst& in, std::uint32_t mask);
/// a: 0 fence, 1 commit, 2 wait; imm = groups that may be pending.
void wgmma_group(Context& c, const ir::Inst& in, std::uint32_t mask);

}  // namespace mxfa::emu::exec
