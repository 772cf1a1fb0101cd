#include "mx_file.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/check.h"

namespace mxfa::cli {
namespace {

template <class T>
struct Named {
  const char* name;
  T value;
};

constexpr std::array kBlockShapes = {
    Named<BlockShape>{"1x32", BlockShape::k1x32}, Named<BlockShape>{"32x1", BlockShape::k32x1},
    Named<BlockShape>{"32x32", BlockShape::k32x32}, Named<BlockShape>{"32xD", BlockShape::k32xD},
    Named<BlockShape>{"1xD", BlockShape::k1xD}};
constexpr std::array kRules = {Named<ScaleRule>{"up", ScaleRule::kRoundUp},
                               Named<ScaleRule>{"floor", ScaleRule::kFloor}};
constexpr std::array kFormats = {Named<DType>{"e4m3", DType::kE4M3},
                                 Named<DType>{"e5m2", DType::kE5M2}};
constexpr std::array kLayouts = {Named<ScaleLayout>{"compact", ScaleLayout::kRowMajor},
                                 Named<ScaleLayout>{"tiled", ScaleLayout::kTiled128x4}};
constexpr std::array kAxes = {Named<ScaleAxis>{"head_dim", ScaleAxis::kHeadDim},
                              Named<ScaleAxis>{"tokens", ScaleAxis::kTokens}};
constexpr std::array kDTypes = {Named<DType>{"F32", DType::kF32}, Named<DType>{"F16", DType::kF16},
                                Named<DType>{"BF16", DType::kBF16}};

template <class Table>
auto parse(const Table& table, const std::string& text, const char* what) {
  std::vector<std::string> names;
  for (const auto& row : table) {
    if (text == row.name) return row.value;
    names.emplace_back(row.name);
  }
  throw Error(
      ErrorKind::kInvalidArgument,
      fmt::format("{}: expected {}, got '{}'", what, fmt::join(names, ", "), io::printable(text)));
}

template <class Table, class T>
const char* name_of(const Table& table, T value) {
  for (const auto& row : table) {
    if (row.value == value) return row.name;
  }
  return "";
}

}  // namespace

BlockShape parse_block_shape(const std::string& text) { return parse(kBlockShapes, text, "block"); }
ScaleRule parse_scale_rule(const std::string& text) { return parse(kRules, text, "rule"); }
DType parse_format(const std::string& text) { return parse(kFormats, text, "format"); }
ScaleLayout parse_scale_layout(const std::string& text) { return parse(kLayouts, text, "layout"); }
ScaleAxis parse_scale_axis(const std::string& text) { return parse(kAxes, text, "axis"); }

std::string to_metadata(const MxDescription& description) {
  nlohmann::ordered_json json = {{"block", name_of(kBlockShapes, description.block_shape)},
                                 {"rule", name_of(kRules, description.rule)},
                                 {"format", name_of(kFormats, description.format)},
                                 {"layout", name_of(kLayouts, description.layout)},
                                 {"axis", name_of(kAxes, description.axis)},
                                 {"dtype", name_of(kDTypes, description.dtype)}};
  if (!description.cu_seqlens.empty()) json["cu_seqlens"] = description.cu_seqlens;
  return json.dump();
}

MxDescription parse_metadata(const std::string& text, const std::string& source,
                             const std::string& tensor) {
  try {
    const auto json = nlohmann::json::parse(text);
    const auto field = [&](const char* name) { return json.at(name).get<std::string>(); };
    MxDescription description{.block_shape = parse_block_shape(field("block")),
                              .rule = parse_scale_rule(field("rule")),
                              .format = parse_format(field("format")),
                              .layout = parse_scale_layout(field("layout")),
                              .axis = parse_scale_axis(field("axis")),
                              .dtype = parse(kDTypes, field("dtype"), "dtype"),
                              .cu_seqlens = {}};
    if (json.contains("cu_seqlens")) description.cu_seqlens = field("cu_seqlens");
    return description;
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorKind::kIo,
                fmt::format("{}: metadata {}{}: expected a JSON object with block, "
                            "rule, format, layout, axis and dtype, got '{}'",
                            source, kMetadataPrefix, io::printable(tensor), io::printable(text)));
  } catch (const Error& error) {
    throw Error(ErrorKind::kIo, fmt::format("{}: metadata {}{}: {}", source, kMetadataPrefix,
                                            io::printable(tensor), error.what()));
  }
}

PackedForm packed_form(const std::string& name, const std::vector<std::int64_t>& shape,
                       const std::optional<io::HostTensor>& offsets) {
  core::expect(
      shape.size() >= 2 && shape.size() <= 4, name,
      "[rows, cols], [tokens, num_heads, head_dim] or [batch, seqlen, num_heads, head_dim]",
      fmt::format("[{}]", fmt::join(shape, ", ")));
  if (shape.size() < 4) return {shape, offsets};
  core::expect(!offsets.has_value(), name, "a packed tensor where cu_seqlens are given",
               fmt::format("[{}]", fmt::join(shape, ", ")));
  PackedForm form{.shape = {shape[0] * shape[1], shape[2], shape[3]}, .offsets = {}};
  form.offsets = io::HostTensor::zeros(DType::kI64, std::vector<std::int64_t>{shape[0] + 1});
  auto* values = static_cast<std::int64_t*>(form.offsets->view().data);
  for (std::int64_t s = 0; s <= shape[0]; ++s) values[s] = s * shape[1];
  return form;
}

QuantizeOptions quantize_options(const MxDescription& description, const PackedForm& form) {
  QuantizeOptions options{.block_shape = description.block_shape,
                          .rule = description.rule,
                          .format = description.format,
                          .layout = description.layout,
                          .scale_axis = description.axis,
                          .cu_seqlens = {}};
  if (form.offsets) options.cu_seqlens = form.offsets->view();
  return options;
}

}  // namespace mxfa::cli
