#include <array>

#include "ptx/opcode.h"

namespace mxfa::emu::ptx {
namespace {

using enum OpClass;

// Type and qualifier sets that recur; macros, since patterns are literals.
#define MXEMU_INT "u16|u32|u64|s16|s32|s64"
#define MXEMU_INT32 "u32|s32"
#define MXEMU_BITS "b16|b32|b64"
#define MXEMU_ANY "b8|b16|b32|b64|u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64"
#define MXEMU_ROUND "rz|rm|rp"
#define MXEMU_SCOPE "cta|cluster|gpu|sys"
#define MXEMU_SPACE \
  "const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster"
#define MXEMU_EVICT                                                                       \
  "[L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate|" \
  "L2::evict_last|L2::evict_normal|L2::evict_first]-"
#define MXEMU_L2 "[L2::cache_hint]- [L2::64B|L2::128B|L2::256B]-"
#define MXEMU_CACHE "[ca|cg|cs|lu|cv|wb|wt]-"
#define MXEMU_COMPARE_FLOAT "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
#define MXEMU_GROUP "cta_group::1|cta_group::2"
#define MXEMU_COLLECTOR \
  "[collector::a::fill|collector::a::use|collector::a::lastuse|collector::a::discard]"
#define MXEMU_TMEM_SHAPE "16x64b|16x128b|16x256b|32x32b|16x32bx2"
#define MXEMU_BOOL "[and|or|xor]-"

constexpr auto kInteger = std::to_array<OpcodeSpec>({
    {"add [sat] s32", "=T T T"},
    {"add u16|u32|u64|s16|s64|u16x2|s16x2", "=T T T"},
    {"sub [sat] s32", "=T T T"},
    {"sub u16|u32|u64|s16|s64", "=T T T"},
    {"add cc u32|s32|u64|s64", "=T T T"},
    {"addc [cc] u32|s32|u64|s64", "=T T T"},
    {"sub cc u32|s32|u64|s64", "=T T T"},
    {"subc [cc] u32|s32|u64|s64", "=T T T"},
    {"mul lo|hi " MXEMU_INT, "=T T T"},
    {"mul wide u16|s16|u32|s32", "=W T T"},
    {"mul24 lo|hi " MXEMU_INT32, "=T T T"},
    {"mad lo|hi " MXEMU_INT, "=T T T T"},
    {"mad wide u16|s16|u32|s32", "=W T T W"},
    {"mad24 lo " MXEMU_INT32, "=T T T T"},
    {"mad lo|hi cc u32|s32|u64|s64", "=T T T T"},
    {"madc lo|hi [cc] u32|s32|u64|s64", "=T T T T"},
    {"sad " MXEMU_INT, "=T T T T"},
    {"div " MXEMU_INT, "=T T T"},
    {"rem " MXEMU_INT, "=T T T"},
    {"abs s16|s32|s64", "=T T"},
    {"neg s16|s32|s64", "=T T"},
    {"min|max " MXEMU_INT "|u16x2|s16x2", "=T T T"},
    {"min|max relu s32|s16x2", "=T T T"},
    {"popc b32|b64", "=u32 T"},
    {"clz b32|b64", "=u32 T"},
    {"bfind [shiftamt] u32|s32|u64|s64", "=u32 T"},
    {"brev b32|b64", "=T T"},
    {"bfe u32|s32|u64|s64", "=T T u32 u32"},
    {"bfi b32|b64", "=T T T u32 u32"},
    {"bmsk clamp|wrap b32", "=T u32 u32"},
    {"szext clamp|wrap u32|s32", "=T T u32"},
    {"dp4a u32|s32 u32|s32", "=T u32 u32 T"},
    {"dp2a lo|hi u32|s32 u32|s32", "=T u32 u32 T"},
    {"and|or|xor pred", "=pred pred pred", kPredLogic},
    {"not pred", "=pred pred", kPredLogic},
    {"and|or|xor " MXEMU_BITS, "=T T T"},
    {"not " MXEMU_BITS, "=T T"},
    {"cnot " MXEMU_BITS, "=T T"},
    {"lop3 b32", "=T T T T u32"},
    {"shl b16|b32|b64", "=T T u32"},
    {"shr b16|b32|b64|u16|u32|u64|s16|s32|s64", "=T T u32"},
    {"shf l|r wrap|clamp b32", "=T T T u32"},
    {"prmt b32 [f4e|b4e|rc8|ecl|ecr|rc16]", "=T T T u32"},
});

constexpr auto kFloat = std::to_array<OpcodeSpec>({
    {"add|sub|mul [rn]- [ftz] [sat] f32", "=T T T"},
    {"add|sub|mul " MXEMU_ROUND " [ftz] [sat] f32", "=T T T"},
    {"add|sub|mul [rn]- f64", "=T T T"},
    {"add|sub|mul " MXEMU_ROUND " f64", "=T T T"},
    {"add|sub|mul [rn]- [ftz] f32x2", "=T T T"},
    {"add|sub|mul " MXEMU_ROUND " [ftz] f32x2", "=T T T"},
    {"add|sub|mul [rn]- [ftz] [sat] f16|f16x2", "=T T T"},
    {"add|sub|mul [rn]- bf16|bf16x2", "=T T T"},
    {"fma rn- [ftz] [sat] f32", "=T T T T"},
    {"fma " MXEMU_ROUND " [ftz] [sat] f32", "=T T T T"},
    {"mad rn- [ftz] [sat] f32", "=T T T T"},
    {"fma rn- f64", "=T T T T"},
    {"fma " MXEMU_ROUND " f64", "=T T T T"},
    {"fma rn- [ftz] f32x2", "=T T T T"},
    {"fma " MXEMU_ROUND " [ftz] f32x2", "=T T T T"},
    {"fma rn- [ftz] [sat|relu] f16|f16x2", "=T T T T"},
    {"fma rn- [relu] bf16|bf16x2", "=T T T T"},
    {"div rn|approx|full- [ftz] f32", "=T T T"},
    {"div " MXEMU_ROUND " [ftz] f32", "=T T T"},
    {"div rn f64", "=T T T"},
    {"div " MXEMU_ROUND " f64", "=T T T"},
    {"abs|neg [ftz] f32|f16|f16x2", "=T T"},
    {"abs|neg f64|bf16|bf16x2", "=T T"},
    {"min|max [ftz] [NaN] [xorsign] [abs] f32", "=T T T [T]"},
    {"min|max f64", "=T T T"},
    {"min|max [ftz] [NaN] [xorsign] [abs] f16|f16x2", "=T T T"},
    {"min|max [NaN] [xorsign] [abs] bf16|bf16x2", "=T T T"},
    {"rcp|sqrt approx|rn- [ftz] f32", "=T T"},
    {"rcp|sqrt " MXEMU_ROUND " [ftz] f32", "=T T"},
    {"rcp|sqrt rn- f64", "=T T"},
    {"rcp approx ftz f64", "=T T"},
    {"rsqrt approx- [ftz] f32|f64", "=T T"},
    {"sin|cos|lg2|ex2 approx- [ftz] f32", "=T T"},
    {"tanh approx- f32", "=T T"},
    {"tanh approx- f16|f16x2|bf16|bf16x2", "=T T"},
    {"ex2 approx- f16|f16x2", "=T T"},
    {"ex2 approx- ftz bf16|bf16x2", "=T T"},
    {"copysign f32|f64", "=T T T"},
    {"testp finite|infinite|number|notanumber|normal|subnormal f32|f64", "=pred T", kSetp},
});

constexpr auto kSelect = std::to_array<OpcodeSpec>({
    {"setp eq|ne|lt|le|gt|ge " MXEMU_BOOL " " MXEMU_INT, "=pred2 T T [pred]", kSetp},
    {"setp lo|ls|hi|hs " MXEMU_BOOL " u16|u32|u64", "=pred2 T T [pred]", kSetp},
    {"setp eq|ne " MXEMU_BOOL " " MXEMU_BITS, "=pred2 T T [pred]", kSetp},
    {"setp " MXEMU_COMPARE_FLOAT " " MXEMU_BOOL " [ftz] f32", "=pred2 T T [pred]", kSetp},
    {"setp " MXEMU_COMPARE_FLOAT " " MXEMU_BOOL " f64|bf16", "=pred2 T T [pred]", kSetp},
    {"setp " MXEMU_COMPARE_FLOAT " " MXEMU_BOOL " [ftz] f16", "=pred2 T T [pred]", kSetp},
    {"setp " MXEMU_COMPARE_FLOAT " " MXEMU_BOOL " [ftz] f16x2", "=pred2 T T [pred]", kSetp},
    {"setp " MXEMU_COMPARE_FLOAT " " MXEMU_BOOL " bf16x2", "=pred2 T T [pred]", kSetp},
    {"set eq|ne|lt|le|gt|ge u32|s32|f32 " MXEMU_INT, "=U T T"},
    {"set lo|ls|hi|hs u32|s32|f32 u16|u32|u64", "=U T T"},
    {"set eq|ne u32|s32|f32 " MXEMU_BITS, "=U T T"},
    {"set " MXEMU_COMPARE_FLOAT " [ftz] u32|s32|f32 f32", "=U T T"},
    {"set " MXEMU_COMPARE_FLOAT " u32|s32|f32 f64", "=U T T"},
    {"selp b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64", "=T T T pred"},
    {"slct b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64 s32", "=U U U T"},
    {"slct [ftz] b32|u32|s32|f32|b64|u64|s64|f64 f32", "=U U U T"},
    {"mov pred", "=pred pred", kPredLogic},
    {"mov b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f16|f16x2|bf16|bf16x2|f32|f64", "*", kMov},
});

constexpr auto kConvert = std::to_array<OpcodeSpec>({
    {"cvt [rni|rzi|rmi|rpi|rn|rz|rm|rp|rna] [ftz] [sat] "
     "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64 "
     "u8|u16|u32|u64|s8|s16|s32|s64|f16|bf16|f32|f64",
     "=U T", kCvt},
    {"cvt rn|rz [relu] [satfinite] f16|bf16 f32", "=U T", kCvt},
    {"cvt rn|rz [satfinite] [relu] f16|bf16 f32", "=U T", kCvt},
    {"cvt rn|rz [relu] [satfinite] f16x2|bf16x2 f32", "=U T T", kCvt},
    {"cvt rn|rz [satfinite] [relu] f16x2|bf16x2 f32", "=U T T", kCvt},
    {"cvt rs [relu] [satfinite] f16x2|bf16x2 f32", "=U T T u32", kCvt},
    {"cvt rna|rn|rz [satfinite] [relu] tf32 f32", "=U T", kCvt},
    {"cvt rn|rz [relu] tf32 f32", "=U T", kCvt},
    {"cvt rn satfinite [relu] e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2 f32", "=U T T", kCvt},
    {"cvt rn satfinite [relu] e4m3x2|e5m2x2 f16x2", "=U T", kCvt},
    {"cvt rn [relu] f16x2 e4m3x2|e5m2x2|e2m3x2|e3m2x2|e2m1x2", "=U T", kCvt},
    {"cvt rs [relu] satfinite e4m3x4|e5m2x4|e2m3x4|e3m2x4|e2m1x4 f32", "=U vT u32", kCvt},
    {"cvt rz|rp [satfinite] ue8m0x2 f32", "=U T T", kCvt},
    {"cvt rz|rp [satfinite] ue8m0x2 bf16x2", "=U T", kCvt},
    {"cvt rn bf16x2 ue8m0x2", "=U T", kCvt},
    {"cvta [to] global|shared|shared::cta|shared::cluster|local|const|param|param::entry u64",
     "=T *", kCvta},
    {"mapa [shared::cluster] u32|u64", "=T T u32", kMapa},
    {"isspacep global|shared|shared::cta|shared::cluster|local|const|param", "=pred u64", kIsSpace},
    {"getctarank [shared::cluster] u32|u64", "=u32 T", kMapa},
});

constexpr auto kMemory = std::to_array<OpcodeSpec>({
    {"ld [weak|volatile] [" MXEMU_SPACE "] " MXEMU_CACHE " " MXEMU_EVICT " " MXEMU_EVICT
     " " MXEMU_L2 " [v2|v4|v8] " MXEMU_ANY "|b128",
     "=vT @ [u64]", kLoad},
    {"ld relaxed|acquire " MXEMU_SCOPE " [global|shared|shared::cta|shared::cluster] " MXEMU_EVICT
     " " MXEMU_EVICT " " MXEMU_L2 " [v2|v4|v8] " MXEMU_ANY "|b128",
     "=vT @ [u64]", kLoad},
    {"ld global [ca|cg|cs]- nc " MXEMU_EVICT " " MXEMU_EVICT " " MXEMU_L2 " [v2|v4|v8] " MXEMU_ANY
     "|b128",
     "=vT @ [u64]", kLoad},
    {"ldu [global] [v2|v4] " MXEMU_ANY, "=vT @", kLoad},
    {"st [weak|volatile] [" MXEMU_SPACE "] " MXEMU_CACHE " " MXEMU_EVICT " " MXEMU_EVICT
     " " MXEMU_L2 " [v2|v4|v8] " MXEMU_ANY "|b128",
     "@ vT [u64]", kStore},
    {"st relaxed|release " MXEMU_SCOPE " [global|shared|shared::cta|shared::cluster] " MXEMU_EVICT
     " " MXEMU_EVICT " " MXEMU_L2 " [v2|v4|v8] " MXEMU_ANY "|b128",
     "@ vT [u64]", kStore},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] add [noftz] [L2::cache_hint]- "
     "u32|s32|u64|f16|f16x2|bf16|bf16x2|f32|f64",
     "=T @ T [u64]", kAtomic},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] min|max [L2::cache_hint]- u32|s32|u64|s64",
     "=T @ T [u64]", kAtomic},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] min|max noftz [L2::cache_hint]- "
     "f16|f16x2|bf16|bf16x2",
     "=T @ T [u64]", kAtomic},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] and|or|xor|exch [L2::cache_hint]- b32|b64",
     "=T @ T [u64]", kAtomic},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] inc|dec [L2::cache_hint]- u32",
     "=T @ T [u64]", kAtomic},
    {"atom [relaxed|acquire|release|acq_rel]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] cas [L2::cache_hint]- b16|b32|b64",
     "=T @ T T [u64]", kAtomic},
    {"red [relaxed|release]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] add [noftz] [L2::cache_hint]- [v2|v4|v8] "
     "u32|s32|u64|f16|f16x2|bf16|bf16x2|f32|f64",
     "@ vT [u64]", kReduction},
    {"red [relaxed|release]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] min|max [L2::cache_hint]- u32|s32|u64|s64",
     "@ vT [u64]", kReduction},
    {"red [relaxed|release]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] min|max noftz [L2::cache_hint]- [v2|v4|v8] "
     "f16|f16x2|bf16|bf16x2",
     "@ vT [u64]", kReduction},
    {"red [relaxed|release]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] and|or|xor [L2::cache_hint]- b32|b64",
     "@ vT [u64]", kReduction},
    {"red [relaxed|release]- [" MXEMU_SCOPE
     "]- [global|shared|shared::cta|shared::cluster] inc|dec [L2::cache_hint]- u32",
     "@ vT [u64]", kReduction},
    {"prefetch [global|local]- L1|L2|L2::evict_last|L2::evict_normal", "*", kHint},
    {"prefetch [param|const]- tensormap", "*", kHint},
    {"prefetchu L1", "*", kHint},
    {"discard [global]- L2", "*", kHint},
    {"applypriority [global]- L2::evict_normal", "*", kHint},
    {"createpolicy fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged "
     "[L2::evict_first|L2::evict_unchanged] b64",
     "=T *", kCreatePolicy},
});

constexpr auto kControl = std::to_array<OpcodeSpec>({
    {"bra [uni]", "label", kBranch},
    {"brx idx [uni]", "*", kBranchIndexed},
    {"exit", "", kExit},
    {"ret [uni]", "", kExit},
    {"trap", "", kTrap},
    {"brkpt", "", kHint},
    {"call [uni]", "*", kCall},
    {"nanosleep u32", "u32", kSleep},
    {"pmevent [mask]", "*", kHint},
    {"griddepcontrol wait|launch_dependents", "", kGridDependency},
    {"setmaxnreg inc|dec sync aligned u32", "imm", kSetMaxRegisters, Sync::kAligned},
    {"shfl sync up|down|bfly|idx b32", "=T|pred T u32 u32 u32", kShfl, Sync::kMembers},
    {"vote sync all|any|uni pred", "=pred pred u32", kVote, Sync::kMembers},
    {"vote sync ballot b32", "=u32 pred u32", kVote, Sync::kMembers},
    {"match any sync b32|b64", "=u32 T u32", kMatch, Sync::kMembers},
    {"match all sync b32|b64", "=u32|pred T u32", kMatch, Sync::kMembers},
    {"activemask b32", "=u32", kActiveMask},
    {"elect sync", "=u32|pred u32", kElect, Sync::kMembers},
    {"redux sync add|min|max u32|s32", "=T T u32", kRedux, Sync::kMembers},
    {"redux sync and|or|xor b32", "=T T u32", kRedux, Sync::kMembers},
    {"redux sync min|max [abs] [NaN] f32", "=T T u32", kRedux, Sync::kMembers},
    {"bar warp sync", "u32", kWarpBarrier, Sync::kNone},
    {"bar|barrier [cta]- sync [aligned]", "u32 [u32]", kCtaBarrier},
    {"bar|barrier [cta]- arrive [aligned]", "u32 u32", kCtaBarrier},
    {"bar|barrier [cta]- red popc [aligned] u32", "*", kCtaBarrier},
    {"bar|barrier [cta]- red and|or [aligned] pred", "*", kCtaBarrier},
    {"barrier cluster arrive [release|relaxed] [aligned]", "", kClusterBarrier},
    {"barrier cluster wait [acquire] [aligned]", "", kClusterBarrier},
    {"membar cta|gl|sys", "", kFence},
    {"membar proxy alias", "", kFence},
    {"fence [sc|acq_rel|acquire|release] cta|cluster|gpu|sys", "", kFence},
    {"fence acquire|release sync_restrict::shared::cta|sync_restrict::shared::cluster cluster", "",
     kFence},
    {"fence mbarrier_init release cluster", "", kFence},
    {"fence proxy alias|async|async.global|async.shared::cta", "", kFence},
    {"fence proxy async global|shared::cta|shared::cluster", "", kFence},
    {"fence proxy tensormap::generic acquire|release " MXEMU_SCOPE, "*", kFence},
    {"ldmatrix sync aligned m8n8 x1|x2|x4 [trans] [shared|shared::cta]- b16", "=vb32 @",
     kLoadMatrix, Sync::kAligned},
    {"ldmatrix sync aligned m16n16 x1|x2 trans [shared|shared::cta]- b8", "=vb32 @", kLoadMatrix,
     Sync::kAligned},
    {"stmatrix sync aligned m8n8 x1|x2|x4 [trans] [shared|shared::cta]- b16", "@ vb32",
     kStoreMatrix, Sync::kAligned},
    // Another order of the qualifiers, which the assembler takes as well.
    {"ldmatrix sync aligned x1|x2|x4 m8n8 [shared|shared::cta]- b16 [trans]", "=vb32 @",
     kLoadMatrix, Sync::kAligned},
    {"stmatrix sync aligned x1|x2|x4 m8n8 [shared|shared::cta]- b16 [trans]", "@ vb32",
     kStoreMatrix, Sync::kAligned},
    {"stmatrix sync aligned m16n8 x1|x2|x4 trans [shared|shared::cta]- b8", "@ vb32", kStoreMatrix,
     Sync::kAligned},
    {"movmatrix sync aligned m8n8 trans b16", "=b32 b32", kMoveMatrix, Sync::kAligned},
});

constexpr auto kAsync = std::to_array<OpcodeSpec>({
    {"mbarrier init [shared|shared::cta]- b64", "@ u32", kMbarrier},
    {"mbarrier inval [shared|shared::cta]- b64", "@", kMbarrier},
    {"mbarrier expect_tx [relaxed]- [cta|cluster]- [shared|shared::cta|shared::cluster]- b64",
     "@ u32", kMbarrier},
    {"mbarrier complete_tx [relaxed]- [cta|cluster]- [shared|shared::cta|shared::cluster]- b64",
     "@ u32", kMbarrier},
    {"mbarrier arrive|arrive_drop [release|relaxed]- [cta|cluster]- "
     "[shared|shared::cta|shared::cluster]- b64",
     "=b64 @ [u32]", kMbarrier},
    {"mbarrier arrive|arrive_drop expect_tx [release|relaxed]- [cta|cluster]- "
     "[shared|shared::cta|shared::cluster]- b64",
     "=b64 @ u32", kMbarrier},
    {"mbarrier arrive|arrive_drop noComplete [release]- [cta]- [shared|shared::cta]- b64",
     "=b64 @ u32", kMbarrier},
    {"mbarrier test_wait|try_wait [acquire|relaxed]- [cta|cluster]- [shared|shared::cta]- b64",
     "=pred @ b64 [u32]", kMbarrier},
    {"mbarrier test_wait|try_wait parity [acquire|relaxed]- [cta|cluster]- [shared|shared::cta]- "
     "b64",
     "=pred @ u32 [u32]", kMbarrier},
    {"mbarrier pending_count b64", "=u32 b64", kMbarrier},
    {"cp async ca|cg [shared|shared::cta]- global- [L2::cache_hint]- [L2::64B|L2::128B|L2::256B]-",
     "@ @ imm *", kCpAsync},
    {"cp async commit_group|wait_all", "", kCpAsync},
    {"cp async wait_group", "imm", kCpAsync},
    {"cp async mbarrier arrive [noinc] [shared|shared::cta]- b64", "@", kCpAsync},
    {"cp async bulk shared::cta|shared::cluster global mbarrier::complete_tx::bytes "
     "[multicast::cluster] [L2::cache_hint]-",
     "*", kBulkCopy},
    {"cp async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes", "*", kBulkCopy},
    {"cp async bulk global shared::cta bulk_group [L2::cache_hint]- [cp_mask]", "*", kBulkCopy},
    {"cp async bulk prefetch L2 global [L2::cache_hint]-", "*", kHint},
    {"cp reduce async bulk global shared::cta bulk_group [L2::cache_hint]- "
     "add|min|max|inc|dec|and|or|xor [noftz] u32|s32|u64|s64|b32|b64|f16|bf16|f32|f64",
     "*", kBulkCopy},
    {"cp reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes "
     "add|min|max|inc|dec|and|or|xor u32|s32|u64|b32",
     "*", kBulkCopy},
    {"cp async bulk tensor 1d|2d|3d|4d|5d shared::cta|shared::cluster global [tile] "
     "mbarrier::complete_tx::bytes [multicast::cluster] [cta_group::1|cta_group::2] "
     "[L2::cache_hint]-",
     "*", kBulkCopy},
    {"cp async bulk tensor 1d|2d|3d|4d|5d global shared::cta [tile] bulk_group [L2::cache_hint]-",
     "*", kBulkCopy},
    {"cp reduce async bulk tensor 1d|2d|3d|4d|5d global shared::cta add|min|max|inc|dec|and|or|xor "
     "[tile] bulk_group [L2::cache_hint]-",
     "*", kBulkCopy},
    {"cp async bulk prefetch tensor 1d|2d|3d|4d|5d L2 global [tile] [L2::cache_hint]-", "*", kHint},
    {"cp async bulk commit_group", "", kBulkGroup},
    {"cp async bulk wait_group [read]", "imm", kBulkGroup},
    {"tensormap replace tile global_address|global_stride [global|shared::cta] b1024 b64", "*",
     kTensorMap},
    {"tensormap replace tile rank|box_dim|global_dim|element_stride|elemtype|interleave_layout|"
     "swizzle_mode|swizzle_atomicity|fill_mode [global|shared::cta] b1024 b32",
     "*", kTensorMap},
    {"tensormap cp_fenceproxy global shared::cta tensormap::generic release " MXEMU_SCOPE
     " sync aligned",
     "*", kTensorMap, Sync::kAligned},
    {"st async [weak]- shared::cluster mbarrier::complete_tx::bytes [v2|v4] "
     "b32|b64|u32|u64|s32|s64|f32|f64",
     "*", kBulkCopy},
    {"wgmma mma_async sync aligned m64n#k8 f32 tf32 tf32", "*", kWgmma, Sync::kAligned},
    {"wgmma mma_async sync aligned m64n#k16 f16 f16 f16", "*", kWgmma, Sync::kAligned},
    {"wgmma mma_async sync aligned m64n#k16 f32 f16 f16", "*", kWgmma, Sync::kAligned},
    {"wgmma mma_async sync aligned m64n#k16 f32 bf16 bf16", "*", kWgmma, Sync::kAligned},
    {"wgmma mma_async sync aligned m64n#k32 f16|f32 e4m3|e5m2 e4m3|e5m2", "*", kWgmma,
     Sync::kAligned},
    {"wgmma mma_async sync aligned m64n#k32 [satfinite] s32 s8|u8 s8|u8", "*", kWgmma,
     Sync::kAligned},
    {"wgmma fence|commit_group sync aligned", "", kWgmma, Sync::kAligned},
    {"wgmma wait_group sync aligned", "imm", kWgmma, Sync::kAligned},
});

constexpr auto kTensor = std::to_array<OpcodeSpec>({
    {"tcgen05 alloc " MXEMU_GROUP " sync aligned [shared::cta]- b32", "*", kTcgen05,
     Sync::kAligned},
    {"tcgen05 dealloc " MXEMU_GROUP " sync aligned b32", "*", kTcgen05, Sync::kAligned},
    {"tcgen05 relinquish_alloc_permit " MXEMU_GROUP " sync aligned", "", kTcgen05, Sync::kAligned},
    {"tcgen05 ld sync aligned " MXEMU_TMEM_SHAPE " x# [pack::16b] b32", "*", kTcgen05,
     Sync::kAligned},
    {"tcgen05 ld red sync aligned 32x32b x# min|max [abs] [NaN] f32", "*", kTcgen05,
     Sync::kAligned},
    {"tcgen05 ld red sync aligned 32x32b x# min|max u32|s32", "*", kTcgen05, Sync::kAligned},
    {"tcgen05 st sync aligned " MXEMU_TMEM_SHAPE " x# [unpack::16b] b32", "*", kTcgen05,
     Sync::kAligned},
    {"tcgen05 wait::ld|wait::st sync aligned", "", kTcgen05, Sync::kAligned},
    {"tcgen05 fence::before_thread_sync|fence::after_thread_sync", "", kTcgen05},
    {"tcgen05 cp " MXEMU_GROUP " 128x256b|128x128b [b8x16] [b4x16_p64|b6x16_p32]", "*", kTcgen05},
    {"tcgen05 cp " MXEMU_GROUP " 64x128b warpx2::02_13|warpx2::01_23 [b8x16] [b4x16_p64|b6x16_p32]",
     "*", kTcgen05},
    {"tcgen05 cp " MXEMU_GROUP " warpx2::02_13|warpx2::01_23 64x128b [b8x16] [b4x16_p64|b6x16_p32]",
     "*", kTcgen05},
    {"tcgen05 cp " MXEMU_GROUP " 32x128b warpx4 [b8x16] [b4x16_p64|b6x16_p32]", "*", kTcgen05},
    {"tcgen05 cp " MXEMU_GROUP " warpx4 32x128b [b8x16] [b4x16_p64|b6x16_p32]", "*", kTcgen05},
    {"tcgen05 mma " MXEMU_GROUP " kind::f16|kind::tf32|kind::f8f6f4 " MXEMU_COLLECTOR, "*",
     kTcgen05},
    {"tcgen05 mma " MXEMU_GROUP
     " kind::mxf8f6f4 block_scale [block32|scale_vec::1X] " MXEMU_COLLECTOR,
     "*", kTcgen05},
    {"tcgen05 commit " MXEMU_GROUP
     " mbarrier::arrive::one [shared::cluster]- [multicast::cluster] b64",
     "*", kTcgen05},
    {"clusterlaunchcontrol try_cancel async [shared::cta]- mbarrier::complete_tx::bytes "
     "[multicast::cluster::all] b128",
     "@ @", kLaunchControl},
    {"clusterlaunchcontrol query_cancel is_canceled pred b128", "=pred b128", kLaunchControl},
    {"clusterlaunchcontrol query_cancel get_first_ctaid v4 b32 b128", "*", kLaunchControl},
    {"clusterlaunchcontrol query_cancel "
     "get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z b32 b128",
     "=b32 b128", kLaunchControl},
});

#undef MXEMU_INT
#undef MXEMU_INT32
#undef MXEMU_BITS
#undef MXEMU_ANY
#undef MXEMU_ROUND
#undef MXEMU_SCOPE
#undef MXEMU_SPACE
#undef MXEMU_EVICT
#undef MXEMU_L2
#undef MXEMU_CACHE
#undef MXEMU_COMPARE_FLOAT
#undef MXEMU_GROUP
#undef MXEMU_COLLECTOR
#undef MXEMU_TMEM_SHAPE
#undef MXEMU_BOOL

template <std::size_t... Sizes>
constexpr auto join(const std::array<OpcodeSpec, Sizes>&... parts) {
  std::array<OpcodeSpec, (Sizes + ...)> all{};
  std::size_t at = 0;
  const auto append = [&](const auto& part) {
    for (const OpcodeSpec& spec : part) all[at++] = spec;
  };
  (append(parts), ...);
  return all;
}

constexpr auto kTable =
    join(kInteger, kFloat, kSelect, kConvert, kMemory, kControl, kAsync, kTensor);

}  // namespace

std::span<const OpcodeSpec> opcode_table() { return kTable; }

}  // namespace mxfa::emu::ptx
