#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace folio {

static_assert(std::endian::native == std::endian::little, "numbers lie in files as in memory");

// Appends little-endian numbers, and strings behind their length.
class ByteWriter {
 public:
  template <typename T>
  void Number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Raw(std::string_view bytes) { bytes_.append(bytes); }
  void String(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    Raw(text);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads what a ByteWriter wrote. What is not there reads as 0 or empty, and ok() is false from then
// on: callers check it before they take memory for what they read. Borrows the bytes.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T Number() {
    T value{};
    const std::string_view raw = Raw(sizeof(value));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(value));
    return value;
  }
  std::string_view Raw(size_t count) {
    ok_ = ok_ && count <= left_.size();
    if (!ok_) return {};
    const std::string_view raw = left_.substr(0, count);
    left_.remove_prefix(count);
    return raw;
  }
  std::string_view String(size_t max_bytes) {
    const auto count = Number<uint32_t>();
    if (count > max_bytes) ok_ = false;
    return Raw(count);
  }

  void Fail() { ok_ = false; }
  bool ok() const { return ok_; }
  size_t left_bytes() const { return left_.size(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

}  // namespace folio
