#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <set>

#include "command.h"
#include "core/check.h"
#include "io/safetensors.h"
#include "mx_file.h"
#include "mxfa/version.h"
#include "reference/sqnr.h"

namespace mxfa::cli {
namespace {

struct QuantizeArguments {
  std::string input;
  std::string output;
  std::vector<std::string> tensors;
  std::string block = "32x32";
  std::string rule = "up";
  std::string format = "e4m3";
  std::string layout = "compact";
  std::string axis = "head_dim";
  std::string cu_seqlens;
  std::string json;
};

/// Rows of these follow cu_seqlens_q, and of those cu_seqlens_k.
constexpr std::array<std::string_view, 4> kQueryTensors = {"q", "o", "dout", "dq"};
constexpr std::array<std::string_view, 4> kKeyTensors = {"k", "v", "dk", "dv"};

struct DequantizeArguments {
  std::string input;
  std::string output;
  std::vector<std::string> tensors;
  std::string dtype = "original";
  std::string json;
};

/// What goes to the output file; owns the tensors that were made or copied.
struct OutputFile {
  std::deque<io::HostTensor> storage;
  std::vector<io::NamedTensor> tensors;
  io::Metadata metadata;

  void add(const std::string& name, io::HostTensor tensor) {
    storage.push_back(std::move(tensor));
    tensors.push_back({name, storage.back().view()});
  }
};

struct Line {
  std::string name;
  std::vector<std::int64_t> scale_shape;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
  double sqnr_db = 0;
};

bool is_float(const io::TensorEntry& entry) {
  return entry.dtype == DType::kF32 || entry.dtype == DType::kF16 || entry.dtype == DType::kBF16;
}

std::string scale_name(const std::string& name) { return name + std::string(kScaleSuffix); }
std::string metadata_key(const std::string& name) { return std::string(kMetadataPrefix) + name; }

/// The tensors asked for, or all that `fits` where none is. Throws Error for a name that is not
/// there or does not fit.
std::set<std::string> select(const io::SafetensorsReader& reader,
                             const std::vector<std::string>& asked, const std::string& expected,
                             const std::function<bool(const io::TensorEntry&)>& fits) {
  std::set<std::string> names;
  for (const std::string& name : asked) {
    const io::TensorEntry& entry = reader.at(name);
    core::expect(fits(entry), io::printable(name), expected,
                 fmt::format("{} [{}]", entry.dtype_name, fmt::join(entry.shape, ", ")));
    names.insert(name);
  }
  if (!asked.empty()) return names;
  for (const io::TensorEntry& entry : reader.tensors()) {
    if (fits(entry)) names.insert(entry.name);
  }
  if (names.empty()) {
    throw Error(ErrorKind::kIo, fmt::format("{}: no tensor is {}", reader.source(), expected));
  }
  return names;
}

/// `--cu-seqlens none`: packed tensors are one sequence, whatever offsets the file holds.
constexpr std::string_view kNoOffsets = "none";

/// Name of the offsets for a tensor: as asked for, else by the names that dumps of attention use;
/// empty where the file has none. Throws Error where it cannot be told which of the file's offsets
/// the tensor's rows follow.
std::string offsets_name(const io::SafetensorsReader& reader, const io::TensorEntry& entry,
                         const std::string& asked) {
  if (asked == kNoOffsets && reader.find(kNoOffsets) == nullptr) return {};
  if (!asked.empty()) return reader.at(asked).name;
  if (entry.shape.size() != 3) return {};
  if (reader.find("cu_seqlens") != nullptr) return "cu_seqlens";
  if (reader.find("cu_seqlens_q") == nullptr && reader.find("cu_seqlens_k") == nullptr) return {};
  for (const auto& [side, names] :
       {std::pair{"cu_seqlens_q", kQueryTensors}, std::pair{"cu_seqlens_k", kKeyTensors}}) {
    const bool ours = std::find(names.begin(), names.end(), entry.name) != names.end();
    if (ours && reader.find(side) != nullptr) return side;
  }
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}: expected --cu-seqlens NAME (or none), because the file has packed "
                          "sequences and the tensor's name does not tell which; got none",
                          io::printable(entry.name)));
}

std::optional<io::HostTensor> read_offsets(const io::SafetensorsReader& reader,
                                           const std::string& name) {
  if (name.empty()) return std::nullopt;
  return reader.read(name);
}

Line quantize_tensor(const io::SafetensorsReader& reader, const io::TensorEntry& entry,
                     MxDescription description, OutputFile& output) {
  const std::string& name = entry.name;
  const io::HostTensor input = reader.read(entry);
  description.cu_seqlens = offsets_name(reader, entry, description.cu_seqlens);
  const std::optional<io::HostTensor> offsets = read_offsets(reader, description.cu_seqlens);
  description.dtype = input.dtype;
  const PackedForm form = packed_form(io::printable(name), input.shape, offsets);
  const QuantizeOptions options = quantize_options(description, form);
  io::HostTensor payload = io::HostTensor::zeros(description.format, input.shape);
  io::HostTensor scales = io::HostTensor::zeros(DType::kE8M0, scale_shape(form.shape, options));
  const TensorView source = make_tensor(input.view().data, input.dtype, form.shape);
  const TensorView target = make_tensor(payload.view().data, payload.dtype, form.shape);
  quantize(source, target, scales.view(), options);
  io::HostTensor back = io::HostTensor::zeros(DType::kF32, form.shape);
  dequantize(target, scales.view(), back.view(), options);
  Line line{.name = name,
            .scale_shape = scales.shape,
            .bytes_in = std::int64_t(input.bytes.size()),
            .bytes_out = std::int64_t(payload.bytes.size() + scales.bytes.size()),
            .sqnr_db = reference::sqnr_db_of<float>(io::to_f32(input), io::to_f32(back))};
  output.add(name, std::move(payload));
  output.add(scale_name(name), std::move(scales));
  output.metadata[metadata_key(name)] = to_metadata(description);
  return line;
}

std::vector<io::Record> records_of(const std::string& routine, const std::vector<Line>& lines,
                                   const io::Metadata& metadata) {
  std::vector<io::Record> records;
  for (const Line& line : lines) {
    io::Record record = base_record(routine, "mxfa cpu");
    const auto description = metadata.find(metadata_key(line.name));
    record.extra = {{"tensor", line.name}};
    if (description != metadata.end()) {
      record.extra["mx"] = io::Json::parse(description->second);
      record.sqnr_db = {{line.name, line.sqnr_db}};
    }
    if (!line.scale_shape.empty()) record.extra["scale_shape"] = line.scale_shape;
    record.extra["bytes_in"] = line.bytes_in;
    record.extra["bytes_out"] = line.bytes_out;
    records.push_back(std::move(record));
  }
  return records;
}

ExitStatus run_quantize(const QuantizeArguments& arguments) {
  const MxDescription description{.block_shape = parse_block_shape(arguments.block),
                                  .rule = parse_scale_rule(arguments.rule),
                                  .format = parse_format(arguments.format),
                                  .layout = parse_scale_layout(arguments.layout),
                                  .axis = parse_scale_axis(arguments.axis),
                                  .cu_seqlens = arguments.cu_seqlens};
  core::expect(
      description.axis == ScaleAxis::kHeadDim || description.layout == ScaleLayout::kTiled128x4,
      "scale-axis", "head_dim without --scale-layout tiled", "'tokens'");
  const auto reader = io::SafetensorsReader::open(arguments.input);
  const std::set<std::string> chosen =
      select(reader, arguments.tensors, "f32, f16 or bf16 with 2 to 4 dimensions",
             [](const io::TensorEntry& entry) {
               return is_float(entry) && entry.shape.size() >= 2 && entry.shape.size() <= 4;
             });
  check_outputs({{"output", arguments.output}, {"json", arguments.json}}, arguments.input);
  OutputFile output;
  output.metadata = reader.metadata();
  std::vector<Line> lines;
  for (const io::TensorEntry& entry : reader.tensors()) {
    if (!chosen.contains(entry.name)) {
      output.add(entry.name, reader.read(entry));
      continue;
    }
    core::expect(reader.find(scale_name(entry.name)) == nullptr, io::printable(entry.name),
                 "a tensor without scales", "one whose name with .scale is taken");
    try {
      lines.push_back(quantize_tensor(reader, entry, description, output));
    } catch (const Error& error) {
      throw Error(error.kind(),
                  fmt::format("tensor {}: {}", io::printable(entry.name), error.what()));
    }
  }
  const std::vector<io::Record> records = records_of("quantize", lines, output.metadata);
  std::vector<std::vector<std::string>> rows = {
      {"tensor", "scales", "bytes in", "bytes out", "SQNR dB"}};
  for (const Line& line : lines) {
    rows.push_back({io::printable(line.name),
                    fmt::format("[{}]", fmt::join(line.scale_shape, ", ")),
                    std::to_string(line.bytes_in), std::to_string(line.bytes_out),
                    fmt::format("{:.1f}", line.sqnr_db)});
  }
  fmt::print("{}", format_table(rows));
  flush_report();
  io::write_safetensors(arguments.output, output.tensors, output.metadata);
  write_json(arguments.json, records);
  return kDone;
}

DType output_dtype(const std::string& text, DType original) {
  if (text == "original") return original;
  if (text == "f32") return DType::kF32;
  if (text == "f16") return DType::kF16;
  core::expect(text == "bf16", "dtype", "original, f32, f16, bf16", fmt::format("'{}'", text));
  return DType::kBF16;
}

Line dequantize_tensor(const io::SafetensorsReader& reader, const io::TensorEntry& entry,
                       const std::string& dtype, OutputFile& output) {
  const MxDescription description =
      parse_metadata(reader.metadata().at(metadata_key(entry.name)), reader.source(), entry.name);
  io::HostTensor payload = reader.read(entry);
  const io::HostTensor scales = reader.read(scale_name(entry.name));
  const std::string name = io::printable(entry.name);
  core::expect(payload.dtype == description.format, name,
               fmt::format("dtype {} as its metadata say", dtype_name(description.format)),
               std::string(dtype_name(payload.dtype)));
  const PackedForm form =
      packed_form(name, payload.shape, read_offsets(reader, description.cu_seqlens));
  const QuantizeOptions options = quantize_options(description, form);
  const std::vector<std::int64_t> expected = scale_shape(form.shape, options);
  core::expect(scales.dtype == DType::kE8M0 && scales.shape == expected, name + ".scale",
               fmt::format("e8m0 [{}]", fmt::join(expected, ", ")), describe(scales.view()));
  io::HostTensor result =
      io::HostTensor::zeros(output_dtype(dtype, description.dtype), payload.shape);
  dequantize(make_tensor(payload.view().data, payload.dtype, form.shape), scales.view(),
             make_tensor(result.view().data, result.dtype, form.shape), options);
  Line line{.name = entry.name,
            .scale_shape = {},
            .bytes_in = std::int64_t(payload.bytes.size() + scales.bytes.size()),
            .bytes_out = std::int64_t(result.bytes.size())};
  output.add(entry.name, std::move(result));
  output.metadata.erase(metadata_key(entry.name));
  return line;
}

ExitStatus run_dequantize(const DequantizeArguments& arguments) {
  output_dtype(arguments.dtype, DType::kF32);
  const auto reader = io::SafetensorsReader::open(arguments.input);
  const std::set<std::string> chosen =
      select(reader, arguments.tensors, "quantized (with metadata mxfa.NAME)",
             [&](const io::TensorEntry& entry) {
               return reader.metadata().contains(metadata_key(entry.name));
             });
  std::set<std::string> scales;
  for (const std::string& name : chosen) scales.insert(scale_name(name));
  check_outputs({{"output", arguments.output}, {"json", arguments.json}}, arguments.input);
  OutputFile output;
  output.metadata = reader.metadata();
  std::vector<Line> lines;
  for (const io::TensorEntry& entry : reader.tensors()) {
    if (chosen.contains(entry.name)) {
      lines.push_back(dequantize_tensor(reader, entry, arguments.dtype, output));
    } else if (!scales.contains(entry.name)) {
      output.add(entry.name, reader.read(entry));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"tensor", "bytes in", "bytes out"}};
  for (const Line& line : lines) {
    rows.push_back(
        {io::printable(line.name), std::to_string(line.bytes_in), std::to_string(line.bytes_out)});
  }
  fmt::print("{}", format_table(rows));
  flush_report();
  io::write_safetensors(arguments.output, output.tensors, output.metadata);
  write_json(arguments.json, records_of("dequantize", lines, output.metadata));
  return kDone;
}

}  // namespace

Command add_quantize(CLI::App& root) {
  CLI::App* app = root.add_subcommand("quantize", "Tensors of a safetensors file to MXFP8");
  app->footer(
      "Each chosen tensor T becomes an FP8 payload T and its E8M0 scales T.scale; the file's\n"
      "metadata say how, so that 'mxfa dequantize' needs no options. Other tensors are copied.\n"
      "Shapes: [rows, cols], packed [tokens, num_heads, head_dim], or\n"
      "[batch, seqlen, num_heads, head_dim]; scales never cross the end of a sequence. Offsets\n"
      "of packed sequences are taken from the file's cu_seqlens, or cu_seqlens_q for q, o, dout,\n"
      "dq and cu_seqlens_k for k, v, dk, dv. Tensors of other dtypes, float64 too, are copied.\n\n"
      "Examples:\n"
      "  mxfa quantize --input qkv.safetensors --output qkv_mx.safetensors\n"
      "  mxfa quantize --input qkv.safetensors --output k_mx.safetensors --tensor k \\\n"
      "       --block 1x32 --scale-layout tiled --cu-seqlens cu_seqlens_k\n"
      "  mxfa quantize --input dump.safetensors --output mx.safetensors --tensor q --tensor k");
  const auto arguments = std::make_shared<QuantizeArguments>();
  app->add_option("--input", arguments->input, "File to read")->required()->type_name("FILE");
  app->add_option("--output", arguments->output, "File to write")->required()->type_name("FILE");
  app->add_option(
         "--tensor", arguments->tensors,
         "Tensor to quantize, may be repeated (default: all F32, F16, BF16 of rank 2 to 4)")
      ->type_name("NAME");
  app->add_option("--block", arguments->block,
                  "Values that share a scale: 1x32, 32x1, 32x32, 32xD, 1xD (tokens x columns)")
      ->capture_default_str();
  app->add_option("--rule", arguments->rule,
                  "Scale from the largest value: up (never saturates) or floor (OCP)")
      ->capture_default_str();
  app->add_option("--format", arguments->format, "Payload: e4m3 or e5m2")->capture_default_str();
  app->add_option("--scale-layout", arguments->layout,
                  "compact, or tiled: 128x4 atoms as tensor cores read them")
      ->capture_default_str();
  app->add_option("--scale-axis", arguments->axis,
                  "Tiled only: head_dim or tokens, the GEMM K that scales lie along")
      ->capture_default_str();
  app->add_option("--cu-seqlens", arguments->cu_seqlens,
                  "Tensor of the file with the offsets of packed sequences [batch + 1], or none")
      ->type_name("NAME");
  add_json_option(*app, arguments->json);
  return {app, [arguments] { return run_quantize(*arguments); }};
}

Command add_dequantize(CLI::App& root) {
  CLI::App* app = root.add_subcommand("dequantize", "The inverse of quantize");
  app->footer(
      "Turns what 'mxfa quantize' wrote back into floats: exact in f32, rounded to nearest even\n"
      "in f16 and bf16. Block shape, layout and dtype come from the file's metadata.\n\n"
      "Examples:\n"
      "  mxfa dequantize --input qkv_mx.safetensors --output qkv.safetensors\n"
      "  mxfa dequantize --input qkv_mx.safetensors --output k.safetensors --tensor k --dtype f32");
  const auto arguments = std::make_shared<DequantizeArguments>();
  app->add_option("--input", arguments->input, "File to read")->required()->type_name("FILE");
  app->add_option("--output", arguments->output, "File to write")->required()->type_name("FILE");
  app->add_option("--tensor", arguments->tensors,
                  "Tensor to dequantize, may be repeated (default: all quantized ones)")
      ->type_name("NAME");
  app->add_option("--dtype", arguments->dtype, "original, f32, f16 or bf16")->capture_default_str();
  add_json_option(*app, arguments->json);
  return {app, [arguments] { return run_dequantize(*arguments); }};
}

}  // namespace mxfa::cli
