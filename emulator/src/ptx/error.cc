#include "mxemu/error.h"

#include <fmt/format.h>

namespace mxfa::emu {
namespace {

std::string message(const PtxLocation& location, const std::string& reason) {
  if (location.line == 0) return fmt::format("{}: {}", location.file, reason);
  if (location.text.empty()) return fmt::format("{}:{}: {}", location.file, location.line, reason);
  return fmt::format("{}:{}: {}: '{}'", location.file, location.line, reason, location.text);
}

}  // namespace

PtxError::PtxError(PtxLocation location, std::string reason, ErrorKind kind)
    : Error(kind, message(location, reason)),
      location_(std::move(location)),
      reason_(std::move(reason)) {}

PtxError::PtxError(PtxLocation location, std::string reason, Fault fault)
    : PtxError(std::move(location), std::move(reason)) {
  fault_ = fault;
}

}  // namespace mxfa::emu
