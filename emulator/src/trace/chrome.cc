#include <fmt/format.h>

#include <map>

#include "mxemu/trace.h"

/// Chrome's trace event format (JSON array form): "X" are slices of a thread, "b" and "e" begin and
/// end nestable asynchronous events.
namespace mxfa::emu {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20) {
      result += ' ';
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string line_text(const TraceReport& report, std::uint32_t line) {
  return line >= 1 && line <= report.lines.size() ? report.lines[line - 1] : std::string();
}

std::string touches(const TraceOp& op) {
  constexpr const char* kSpaces[] = {"global", "shared", "tensor"};
  std::string out;
  for (const TraceTouch& touch : op.touches) {
    out += fmt::format(R"({}{{"space": "{}", "writes": {}, "begin": {}, "size": {}, "lanes": {}}})",
                       out.empty() ? "" : ", ", kSpaces[static_cast<std::size_t>(touch.space)],
                       touch.writes, touch.begin, touch.size, touch.lanes);
  }
  return out;
}

std::string executed(const TraceReport& report) {
  std::string counts, lines;
  for (std::uint32_t line = 0; line <= report.lines.size(); ++line) {
    bool any = false;
    for (std::uint32_t warp = 0; warp < report.warps; ++warp) {
      const std::uint64_t count = report.executed[warp][line];
      if (count == 0) continue;
      any = true;
      counts += fmt::format("{}[{}, {}, {}]", counts.empty() ? "" : ", ", warp, line, count);
    }
    if (!any) continue;
    lines += fmt::format("{}\"{}\": {}", lines.empty() ? "" : ",\n", line,
                         quoted(line_text(report, line)));
  }
  return fmt::format("\"executed\": [{}],\n\"lines\": {{{}}}", counts, lines);
}

}  // namespace

const char* name_of(TraceGroup group) {
  constexpr const char* kNames[] = {"math", "memory", "matrix", "copy", "tensor", "sync", "wait"};
  return kNames[static_cast<std::size_t>(group)];
}

std::string chrome_json(const TraceReport& report) {
  std::string out = "{\"traceEvents\": [\n";
  const auto add = [&](const std::string& event) {
    if (!out.ends_with("[\n")) out += ",\n";
    out += event;
  };
  std::map<std::uint32_t, bool> blocks;
  for (const TraceSlice& slice : report.slices) blocks[slice.block] = true;
  for (const auto& [block, seen] : blocks) {
    add(fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": {}}}}})",
                    block, quoted(fmt::format("{}, block {}", report.kernel, block))));
    for (std::uint32_t warp = 0; warp < report.warps; ++warp) {
      add(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, )"
                      R"("args": {{"name": "warp {}"}}}})",
                      block, warp, warp));
    }
  }
  for (const TraceSlice& slice : report.slices) {
    add(fmt::format(R"({{"ph": "X", "name": "{}", "cat": "warp", "pid": {}, "tid": {}, "ts": {}, )"
                    R"("dur": {}, "args": {{"line": {}, "text": {}{}}}}})",
                    name_of(slice.group), slice.block, slice.warp, slice.begin,
                    slice.end - slice.begin, slice.line, quoted(line_text(report, slice.line)),
                    slice.barrier < 0 ? "" : fmt::format(R"(, "barrier": {})", slice.barrier)));
  }
  for (std::size_t i = 0; i < report.ops.size(); ++i) {
    const TraceOp& op = report.ops[i];
    const std::string common =
        fmt::format(R"("name": {}, "cat": "asynchronous", "pid": {}, "tid": 0, "id": {})",
                    quoted(op.what), op.block, i);
    add(fmt::format(R"({{"ph": "b", {}, "ts": {}, "args": {{"text": {}, "warp": {}, "line": {}, )"
                    R"("touches": [{}]}}}})",
                    common, op.begin, quoted(op.text), op.warp, op.line, touches(op)));
    add(fmt::format(R"({{"ph": "e", {}, "ts": {}}})", common, op.end));
  }
  return out + "\n],\n" + executed(report) + "}\n";
}

}  // namespace mxfa::emu
