#include "server/edge/header_fields.h"

#include <algorithm>

namespace folio::server {
namespace {

// Integers beyond are errors to every decoder.
constexpr int kMaxShift = 28;

}  // namespace

void HeaderFields::BeginField(uint8_t byte) {
  ++count_;
  int prefix_bits = 4;  // 0000, 0001: literal that is not indexed
  has_value_ = true;
  if ((byte & 0x80) != 0) {
    prefix_bits = 7;  // 1: indexed field
    has_value_ = false;
  } else if ((byte & 0xc0) == 0x40) {
    prefix_bits = 6;  // 01: literal that is indexed
  } else if ((byte & 0xe0) == 0x20) {
    prefix_bits = 5;  // 001: size of the table
    has_value_ = false;
  }
  const int all = (1 << prefix_bits) - 1;
  has_name_ = has_value_ && (byte & all) == 0;
  if ((byte & all) == all) {
    next_ = Next::kIndex;
  } else {
    EndIndex();
  }
}

void HeaderFields::EndIndex() {
  num_strings_ = has_value_ ? (has_name_ ? 2 : 1) : 0;
  next_ = num_strings_ > 0 ? Next::kLength : Next::kField;
}

void HeaderFields::BeginLength(uint8_t byte) {
  length_ = byte & 0x7f;
  shift_ = 0;
  if (length_ == 0x7f) {
    next_ = Next::kLengthGoesOn;
  } else {
    EndLength();
  }
}

void HeaderFields::EndLength() {
  next_ = Next::kString;
  if (length_ > 0) return;
  next_ = --num_strings_ > 0 ? Next::kLength : Next::kField;
}

void HeaderFields::Add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (next_ == Next::kString) {
      const size_t skipped = std::min<uint64_t>(length_, bytes.size());
      length_ -= skipped;
      bytes.remove_prefix(skipped);
      if (length_ == 0) EndLength();
      continue;
    }
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    const bool goes_on = (byte & 0x80) != 0;
    switch (next_) {
      case Next::kField:
        BeginField(byte);
        break;
      case Next::kIndex:
        if (!goes_on) EndIndex();
        break;
      case Next::kLength:
        BeginLength(byte);
        break;
      case Next::kLengthGoesOn:
        if (shift_ <= kMaxShift) length_ += static_cast<uint64_t>(byte & 0x7f) << shift_;
        shift_ += 7;
        if (!goes_on) EndLength();
        break;
      case Next::kString:
        break;
    }
  }
}

}  // namespace folio::server
