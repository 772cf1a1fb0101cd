#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "mxfa/error.h"

namespace mxfa::emu::model {

/// The message that `action` throws, or "no error".
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Expects an Error whose message contains `part`.
inline void expect_fault(const std::function<void()>& action, const std::string& part) {
  const std::string text = message_of(action);
  EXPECT_NE(text.find(part), std::string::npos) << "message: " << text << "\nwanted: " << part;
}

}  // namespace mxfa::emu::model
