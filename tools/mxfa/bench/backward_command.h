#pragma once

#include "command.h"

namespace mxfa::cli::bench {

/// `mxfa bench backward`: attention backward on a GPU.
Command add_backward(CLI::App& bench);

}  // namespace mxfa::cli::bench
