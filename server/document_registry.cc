#include "server/document_registry.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

std::string FreshId() {
  std::random_device random;
  const uint64_t bits = uint64_t{random()} << 32 | random();
  return absl::StrCat("doc-", absl::Hex(bits, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<std::shared_ptr<UploadState>> DocumentRegistry::OpenOrResume(
    const std::string& id, const std::string& display_name, const Tokenizer& tokenizer) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = uploads_.find(id);
  if (it != uploads_.end()) return it->second;
  if (static_cast<int>(uploads_.size()) >= max_documents_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server holds its limit of ", max_documents_,
                     " documents; delete some or raise --max-documents"));
  }
  const std::string name = id.empty() ? FreshId() : id;
  auto state = std::make_shared<UploadState>(tokenizer, name, display_name);
  uploads_.emplace(name, state);
  return state;
}

std::shared_ptr<UploadState> DocumentRegistry::Find(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = uploads_.find(id);
  return it == uploads_.end() ? nullptr : it->second;
}

void DocumentRegistry::Erase(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  uploads_.erase(id);
}

int DocumentRegistry::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return static_cast<int>(uploads_.size());
}

}  // namespace folio::server
