#pragma once

#include "command.h"

namespace mxfa::cli::bench {

/// `mxfa bench compare`.
Command add_compare(CLI::App& bench);

}  // namespace mxfa::cli::bench
