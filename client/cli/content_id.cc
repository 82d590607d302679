#include "client/cli/content_id.h"

#include <openssl/evp.h>

#include <cstdint>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/strategy.h"

namespace folio::cli {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kIdDigits = 40;

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

absl::StatusOr<ContentId> ContentIdOf(const client::DocumentSource& source,
                                      const Attention& attention, const FormatFlags& format) {
  const absl::Status failed = absl::InternalError("SHA-256 is not available");
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> context(EVP_MD_CTX_new());
  if (context == nullptr) return failed;
  if (EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) return failed;
  std::string prefix =
      absl::StrCat(client::DescribeMethod(attention.strategy.value_or(v1::AttentionStrategy())),
                   "\n", client::DescribeMethod(attention.position.value_or(v1::PositionScheme())),
                   "\n", source.size_bytes(), "\n");
  if (format.format != v1::PROMPT_FORMAT_UNSPECIFIED || format.system.has_value()) {
    absl::StrAppend(&prefix, v1::PromptFormat_Name(format.format), "\n",
                    format.system.has_value() ? absl::StrCat(format.system->size()) : "none", "\n",
                    format.system.value_or(""), "\n");
  }
  if (!attention.adapter.value_or("").empty()) {
    absl::StrAppend(&prefix, "adapter ", *attention.adapter, "\n");
  }
  if (EVP_DigestUpdate(context.get(), prefix.data(), prefix.size()) != 1) return failed;
  for (uint64_t offset = 0; offset < source.size_bytes(); offset += kReadBytes) {
    const absl::StatusOr<std::string> data = source.Read(offset, kReadBytes);
    if (!data.ok()) return data.status();
    if (EVP_DigestUpdate(context.get(), data->data(), data->size()) != 1) return failed;
  }
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int num_bytes = 0;
  if (EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()),
                         &num_bytes) != 1) {
    return failed;
  }
  digest.resize(num_bytes);
  const std::string digits = absl::BytesToHexString(digest);
  return ContentId{absl::StrCat("doc-", digits.substr(0, kIdDigits)), digits.substr(kIdDigits)};
}

}  // namespace folio::cli
