#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mxfa/error.h"
#include "mxfa/tensor.h"
#include "support/rng.h"

/// Calls of which one argument has been spoiled, drawn by number.
namespace mxfa::testing {

/// A tensor of a call, by the name that errors give it.
struct Argument {
  enum class Role { kInput, kOutput, kOffsets };
  std::string name;
  TensorView* view = nullptr;
  Role role = Role::kInput;
  bool fixed = true;  ///< its extents follow from other arguments
};

/// What was done to a call, and which names the error may begin with.
struct Spoiled {
  std::string what;
  std::vector<std::string> names;
};

inline Spoiled spoil_dtype(Rng& rng, const Argument& argument) {
  std::vector<DType> wrong{DType::kF64, static_cast<DType>(77)};
  if (argument.role == Argument::Role::kOffsets) wrong.push_back(DType::kF32);
  argument.view->dtype = wrong[static_cast<std::size_t>(rng.integer(0, std::ssize(wrong) - 1))];
  return {"dtype", {argument.name}};
}

/// Extents that do not fit the call's other tensors, so that any of them may be named.
inline Spoiled spoil_extent(Rng& rng, const std::vector<Argument>& arguments,
                            const Argument& argument) {
  TensorView& view = *argument.view;
  std::int64_t& extent = view.shape[static_cast<std::size_t>(rng.integer(0, view.rank - 1))];
  // More offsets than there are would be read.
  const bool more = argument.role != Argument::Role::kOffsets && rng.integer(0, 1) == 1;
  extent = more ? extent + rng.integer(1, 40) : rng.integer(0, extent - 1);
  Spoiled spoiled{"extent", {"shape", "head_dim", "num_heads", "num_heads_kv", "batch"}};
  for (const Argument& any : arguments) spoiled.names.push_back(any.name);
  return spoiled;
}

inline Spoiled spoil_form(Rng& rng, const Argument& argument) {
  TensorView& view = *argument.view;
  const auto d = static_cast<std::size_t>(rng.integer(0, view.rank - 1));
  switch (rng.integer(0, 4)) {
    case 0:
      view.shape[d] = -rng.integer(1, 1000);
      return {"negative extent", {argument.name}};
    case 1:
      view.shape[d] = std::int64_t{1} << rng.integer(57, 62);
      return {"huge extent", {argument.name}};
    case 2:
      view.strides[d] =
          (std::int64_t{1} << rng.integer(57, 62)) * (rng.integer(0, 1) == 0 ? 1 : -1);
      if (view.shape[d] > 1) return {"huge stride", {argument.name}};
      view.strides[d] = 1;
      [[fallthrough]];
    case 3:
      view.rank = rng.integer(0, 1) == 0 ? 9 : -1;
      return {"rank", {argument.name}};
    default:
      view.data = nullptr;
      return {"null pointer", {argument.name}};
  }
}

inline Spoiled spoil_output(Rng& rng, const std::vector<Argument>& arguments,
                            const Argument& argument) {
  TensorView& view = *argument.view;
  for (int d = 0; rng.integer(0, 2) == 0 && d < view.rank; ++d) {
    if (view.shape[static_cast<std::size_t>(d)] < 2) continue;
    view.strides[static_cast<std::size_t>(d)] = 0;
    return {"stride 0", {argument.name}};
  }
  const Argument* other = &argument;
  while (other == &argument) {
    other = &arguments[static_cast<std::size_t>(rng.integer(0, std::ssize(arguments) - 1))];
  }
  view.data = other->view->data;
  return {"memory of " + other->name, {argument.name, other->name}};
}

/// One of the arguments, in one way. All are contiguous and have elements.
inline Spoiled spoil(Rng& rng, const std::vector<Argument>& arguments) {
  const Argument& argument =
      arguments[static_cast<std::size_t>(rng.integer(0, std::ssize(arguments) - 1))];
  Spoiled spoiled;
  const std::int64_t way = rng.integer(0, 5);
  if (way == 0) {
    spoiled = spoil_dtype(rng, argument);
  } else if (way == 1 && argument.fixed) {
    spoiled = spoil_extent(rng, arguments, argument);
  } else if (way == 2 && dtype_size(argument.view->dtype) > 1) {
    argument.view->data = static_cast<std::uint8_t*>(argument.view->data) + 1;
    spoiled = {"odd address", {argument.name}};
  } else if (way == 3 && argument.role == Argument::Role::kOutput) {
    spoiled = spoil_output(rng, arguments, argument);
  } else {
    spoiled = spoil_form(rng, argument);
  }
  spoiled.what = argument.name + ": " + spoiled.what;
  return spoiled;
}

/// Offsets that are no ascending ones from 0 within `rows`.
inline Spoiled spoil_offsets(Rng& rng, std::vector<std::int32_t>& offsets, std::int64_t rows,
                             const std::string& name) {
  const auto i = static_cast<std::size_t>(rng.integer(1, std::ssize(offsets) - 1));
  switch (rng.integer(0, 3)) {
    case 0:
      offsets[0] = static_cast<std::int32_t>(rng.integer(1, 5));
      break;
    case 1:
      offsets[i] = -static_cast<std::int32_t>(rng.integer(1, 1 << 30));
      break;
    case 2:
      offsets[i] = static_cast<std::int32_t>(rows + rng.integer(1, 1 << 30));
      break;
    default:
      offsets[i] = offsets[i - 1] - 1;
      break;
  }
  return {name + ": values", {name}};
}

/// `call` throws an Error that begins with one of the names, and says what was expected.
inline void expect_refused(const Spoiled& spoiled, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << spoiled.what << ": accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool argument =
        error.kind() == ErrorKind::kInvalidArgument || error.kind() == ErrorKind::kUnsupported;
    bool named = false;
    for (const std::string& name : spoiled.names) {
      named |= message.rfind(name, 0) == 0 &&
               std::string(":.[,").find(message[name.size()]) != std::string::npos;
    }
    EXPECT_TRUE(argument && named && message.find("expected") != std::string::npos)
        << spoiled.what << ": " << message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << spoiled.what << ": " << error.what();
  }
}

}  // namespace mxfa::testing
