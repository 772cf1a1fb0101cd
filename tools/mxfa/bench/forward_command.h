#pragma once

#include "command.h"

namespace mxfa::cli::bench {

/// `mxfa bench forward`.
Command add_forward(CLI::App& bench);

}  // namespace mxfa::cli::bench
