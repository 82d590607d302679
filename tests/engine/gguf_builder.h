#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace folio {

// Writes the bytes of small GGUF files, good or bad, as the public description has them.
class GgufBuilder {
 public:
  enum Type : uint32_t {
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9
  };

  template <typename T>
  static std::string Bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }
  static std::string Text(std::string_view text) {
    return Bytes(uint64_t{text.size()}).append(text);
  }

  GgufBuilder& Value(std::string_view key, uint32_t type, std::string_view bytes) {
    pairs_ += Text(key) + Bytes(type);
    pairs_ += bytes;
    ++num_pairs;
    return *this;
  }
  GgufBuilder& Add(std::string_view key, uint32_t value) {
    return Value(key, kUint32, Bytes(value));
  }
  GgufBuilder& Add(std::string_view key, float value) { return Value(key, kFloat32, Bytes(value)); }
  GgufBuilder& Add(std::string_view key, bool value) { return Value(key, kBool, Bytes(value)); }
  GgufBuilder& Add(std::string_view key, const char* text) {
    return Value(key, kString, Text(text));
  }
  GgufBuilder& Add(std::string_view key, const std::vector<std::string>& texts) {
    std::string bytes = Bytes(uint32_t{kString}) + Bytes(uint64_t{texts.size()});
    for (const std::string& text : texts) bytes += Text(text);
    return Value(key, kArray, bytes);
  }
  GgufBuilder& Add(std::string_view key, const std::vector<int32_t>& numbers) {
    std::string bytes = Bytes(uint32_t{kInt32}) + Bytes(uint64_t{numbers.size()});
    for (const int32_t number : numbers) bytes += Bytes(number);
    return Value(key, kArray, bytes);
  }
  GgufBuilder& Add(std::string_view key, const std::vector<float>& numbers) {
    std::string bytes = Bytes(uint32_t{kFloat32}) + Bytes(uint64_t{numbers.size()});
    for (const float number : numbers) bytes += Bytes(number);
    return Value(key, kArray, bytes);
  }

  // `dims` as in the file: columns first.
  GgufBuilder& Tensor(std::string_view name, std::initializer_list<uint64_t> dims, uint32_t type,
                      uint64_t begin) {
    tensors_ += Text(name) + Bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += Bytes(dim);
    tensors_ += Bytes(type) + Bytes(begin);
    ++num_tensors;
    return *this;
  }

  // With so many bytes of data.
  std::string Build(size_t data_bytes = 0) const {
    std::string file = magic + Bytes(version) + Bytes(num_tensors) + Bytes(num_pairs);
    file += pairs_ + tensors_;
    file.append((alignment - file.size() % alignment) % alignment, '\0');
    return file.append(data_bytes, '\1');
  }

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t num_tensors = 0;
  uint64_t num_pairs = 0;
  size_t alignment = 32;

 private:
  std::string pairs_;
  std::string tensors_;
};

}  // namespace folio
