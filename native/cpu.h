// Which instruction-set paths this machine can run, and why not the others. Compiled without instruction-set flags.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace kvr {

struct Path {
  const char *name;
  const KernelTable *table;
  bool supported;
  bool automatic;       // may be chosen without being asked for
  std::string missing;  // what the machine lacks, empty where supported
};

// Best first. Probed once.
const std::vector<Path> &paths();

// The path of that name, or the best one where it is empty. Throws std::invalid_argument with what is missing.
const Path &choose_path(const std::string &name);

// As the CPU names itself.
std::string cpu_name();

}  // namespace kvr
