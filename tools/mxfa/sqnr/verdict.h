#pragma once

#include <string>
#include <vector>

#include "sqnr/measure.h"

/// From numbers to advice: is a scheme safe for these tensors, what limits it, why, what helps.
namespace mxfa::cli::sqnr {

enum class Grade { kPass, kBorderline, kFail };
/// "pass", "borderline", "fail": as in result records.
const char* grade_name(Grade grade);

/// What a tensor must reach, in dB against attention in float64 on the given inputs.
struct Bar {
  StepTensor tensor;
  double safe_db;
  double borderline_db;
};

/// The tensors that leave the attention call and so reach the model; S, P, dP and dS only explain
/// them. 18 dB: a production training run in MXFP8 whose tensors lay between 18.8 and 28.0 dB was
/// neutral in its loss. 15 dB is twice that noise power: not known to hurt, not known to be safe.
inline constexpr Bar kBars[] = {
    {StepTensor::kO, 18.0, 15.0},
    {StepTensor::kDv, 18.0, 15.0},
    {StepTensor::kDq, 18.0, 15.0},
    {StepTensor::kDk, 18.0, 15.0},
};

Grade grade_of(double db, const Bar& bar);

struct SchemeGrade {
  Grade grade = Grade::kPass;
  StepTensor limiting = StepTensor::kO;  ///< with the least margin over its bar
  double db = 0;                         ///< of the limiting tensor
};

SchemeGrade grade_scheme(const SchemeResult& result);

struct Verdict {
  std::vector<SchemeGrade> grades;  ///< one a scheme, in order
  int plain = -1;        ///< index of the MXFP8 scheme without dials that is judged; -1: none
  int recommended = -1;  ///< cheapest safe MXFP8 scheme, -1: none is safe
  std::vector<std::string> lines;  ///< in words
};

Verdict judge(const Measurement& measurement, const Sample& sample);

/// "12.3", "exact" where nothing differs, "nan".
std::string db_text(double db);

}  // namespace mxfa::cli::sqnr
