#include "engine/store/document_id.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/store/content_key.h"
#include "engine/store/sha256.h"

namespace folio {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr char kHexDigits[] = "0123456789ABCDEF";

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

}  // namespace

absl::Status CheckDocumentId(std::string_view id) {
  const bool printable = std::all_of(id.begin(), id.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
  if (!id.empty() && id.size() <= kMaxDocumentIdBytes && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a document id of ", id.size(),
                                                 " bytes must be 1 to ", kMaxDocumentIdBytes,
                                                 " bytes without control characters"));
}

std::string DirectoryNameOf(std::string_view id) {
  std::string name;
  for (const char c : id) {
    const auto byte = static_cast<unsigned char>(c);
    if (IsPlain(c)) {
      name += c;
    } else {
      name += {'%', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
    }
  }
  if (name.size() <= kMaxNameBytes) return name;
  Sha256 hash("folio document id");
  hash.Add(id);
  return absl::StrCat("%h", HexOf(hash.Finish()));
}

}  // namespace folio
