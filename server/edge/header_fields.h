#pragma once

#include <cstdint>
#include <string_view>

namespace folio::server {

// Counts the fields of compressed header blocks without decoding them: integers are read, strings
// are skipped. Source: RFC 7541, sections 5 and 6.
class HeaderFields {
 public:
  void BeginBlock() { *this = HeaderFields(); }
  // The next bytes of the block.
  void Add(std::string_view bytes);
  int count() const { return count_; }

 private:
  // What the next byte is.
  enum class Next : uint8_t { kField, kIndex, kLength, kLengthGoesOn, kString };

  void BeginField(uint8_t byte);
  // The index of a field is known: what of it follows are strings.
  void EndIndex();
  void BeginLength(uint8_t byte);
  void EndLength();

  Next next_ = Next::kField;
  int count_ = 0;
  bool has_value_ = false;  // of the field that is read: a literal, not an index alone
  bool has_name_ = false;   // spelled out, in front of the value
  int num_strings_ = 0;     // still to come
  int shift_ = 0;           // of the next seven bits
  uint64_t length_ = 0;     // of the string that is read, or what is left of it
};

}  // namespace folio::server
