// A temporary folder of this process, which is removed when the process ends.
#pragma once

#include <string>
#include <vector>

namespace tvm_stretch {

// The path, below TMPDIR or /tmp. Throws DeviceError if there can be no folder.
const std::string& OwnFolder();

// The names of the files in a folder.
std::vector<std::string> NamesIn(const std::string& path);

}  // namespace tvm_stretch
