#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/scratch_dir.h"

namespace folio {

namespace test {
std::string TestData(const std::string& relative);  // in test_model.h
}  // namespace test

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// tests/golden of the source tree.
inline std::string GoldenDir() { return test::TestData("golden"); }

// The bytes of a safetensors file with any header, true or not.
inline std::string SafetensorsBytes(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes.append(header).append(data_bytes, '\1');
}

}  // namespace folio
