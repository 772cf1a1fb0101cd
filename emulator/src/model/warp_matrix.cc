#include "model/warp_matrix.h"

#include <string_view>

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kRowBytes = 16;

bool is_load_only(MatrixForm form) { return form == MatrixForm::kM16N16Trans; }
bool is_store_only(MatrixForm form) { return form == MatrixForm::kM16N8Trans; }

using Rows = std::array<std::array<std::byte, kRowBytes>, 32>;

void check_access(std::string_view what, const MatrixAccess& access, std::size_t regs) {
  const std::uint32_t want = matrix_registers(access.form, access.num);
  if (regs != want) {
    fault(fmt::format("{} registers", what), std::to_string(want), static_cast<std::int64_t>(regs));
  }
  if (access.addresses.size() != 32) {
    fault(fmt::format("{} addresses", what), "32 lanes",
          static_cast<std::int64_t>(access.addresses.size()));
  }
  for (std::uint32_t lane = 0; lane < matrix_address_lanes(access.form, access.num); ++lane) {
    if (access.addresses[lane] % kRowBytes != 0) {
      fault(fmt::format("{} address of lane {}", what, lane), "a multiple of 16",
            fmt::format("{:#x}", access.addresses[lane]));
    }
  }
}

std::vector<ByteRange> ranges(const MatrixAccess& access) {
  std::vector<ByteRange> result;
  for (std::uint32_t lane = 0; lane < matrix_address_lanes(access.form, access.num); ++lane) {
    result.push_back({access.addresses[lane], kRowBytes});
  }
  return result;
}

}  // namespace

std::uint32_t matrix_registers(MatrixForm form, std::uint32_t num) {
  const bool wide = form == MatrixForm::kM16N16Trans;
  if (num != 1 && num != 2 && (num != 4 || wide)) {
    fault("matrix count", wide ? ".x1 or .x2" : ".x1, .x2 or .x4", fmt::format(".x{}", num));
  }
  return wide ? 2 * num : num;
}

std::uint32_t matrix_address_lanes(MatrixForm form, std::uint32_t num) {
  return form == MatrixForm::kM16N16Trans ? 16 * num : 8 * num;
}

std::vector<ByteRange> ldmatrix(const MatrixAccess& access, ByteMemory& smem,
                                std::span<std::uint32_t* const> regs) {
  if (is_store_only(access.form)) fault("ldmatrix shape", ".m8n8 or .m16n16", ".m16n8");
  check_access("ldmatrix", access, regs.size());
  Rows rows;
  const std::vector<ByteRange> touched = ranges(access);
  for (std::size_t lane = 0; lane < touched.size(); ++lane) {
    smem.read(touched[lane].begin, rows[lane]);
  }
  for (std::uint32_t reg = 0; reg < regs.size(); ++reg) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      std::uint32_t word = 0;
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        const MatrixByte at = matrix_byte(access.form, lane, reg, byte);
        word |= static_cast<std::uint32_t>(rows[at.lane][at.byte]) << (8 * byte);
      }
      regs[reg][lane] = word;
    }
  }
  return touched;
}

std::vector<ByteRange> stmatrix(const MatrixAccess& access, ByteMemory& smem,
                                std::span<const std::uint32_t* const> regs) {
  if (is_load_only(access.form)) fault("stmatrix shape", ".m8n8 or .m16n8", ".m16n16");
  check_access("stmatrix", access, regs.size());
  Rows rows{};
  for (std::uint32_t reg = 0; reg < regs.size(); ++reg) {
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t byte = 0; byte < 4; ++byte) {
        const MatrixByte at = matrix_byte(access.form, lane, reg, byte);
        rows[at.lane][at.byte] = static_cast<std::byte>(regs[reg][lane] >> (8 * byte));
      }
    }
  }
  const std::vector<ByteRange> touched = ranges(access);
  for (std::size_t lane = 0; lane < touched.size(); ++lane) {
    smem.write(touched[lane].begin, rows[lane]);
  }
  return touched;
}

std::array<std::uint32_t, 32> movmatrix(std::span<const std::uint32_t, 32> source) {
  std::array<std::uint32_t, 32> result{};
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      const std::uint32_t row = lane % 4 * 2 + half;  // of the source, a column of the result
      const std::uint32_t col = lane / 4;
      const std::uint32_t value = source[row * 4 + col / 2] >> (16 * (col % 2)) & 0xFFFFu;
      result[lane] |= value << (16 * half);
    }
  }
  return result;
}

}  // namespace mxfa::emu::model
