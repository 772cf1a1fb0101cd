#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/json_records.h"
#include "reference/recipe/recipe.h"

/// The schemes that `mxfa sqnr` compares, and the names by which they are asked for.
namespace mxfa::cli::sqnr {

struct Scheme {
  std::string name;   ///< "32x32+smooth-k"
  std::string label;  ///< "MXFP8 32x32, K smoothing": for people
  reference::recipe::RecipeConfig config;
  /// Tensor-core time of forward and backward against a step whose seven GEMMs (S and O; S, dP, dV,
  /// dK, dQ) are all FP8: a BF16 GEMM counts twice. Softmax and memory are not in it.
  double matmul_time = 1.0;
  int num_dials = 0;
  std::string advice;  ///< how to switch its dials on, and what they cost besides matmul time
  bool is_mx = false;  ///< MXFP8, in contrast to BF16 and per-tensor FP8
};

/// A base ("bf16", "fp8-per-tensor", "32x32", "1x32", "32xD") and dials joined by '+'; a base that
/// is not written is "32x32". Throws Error naming an unknown part (with the known ones) or a
/// combination that no machine can execute.
Scheme parse_scheme(std::string_view name, std::string_view option = "schemes");

/// What is measured where nothing is asked for, and under `--schemes all`.
std::vector<std::string> default_schemes(bool causal);
std::vector<std::string> all_schemes(bool causal);

/// One line for each base and dial, for `--help`.
std::string scheme_help();

/// The variant fields of a record.
io::VariantRecord variant_of(const reference::recipe::RecipeConfig& config);

}  // namespace mxfa::cli::sqnr
