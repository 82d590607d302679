#include "engine/runtime/model_adapters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/store/fingerprint.h"

namespace folio {
namespace {

constexpr size_t kMaxNameBytes = 64;

absl::Status CheckName(const std::string& name) {
  const auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; };
  if (!name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("its name must be 1 to 64 characters of [A-Za-z0-9_-]");
}

absl::Status About(const std::string& name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("adapter ", Quoted(name), ": ", status.message()));
}

}  // namespace

absl::StatusOr<ModelAdapters> ModelAdapters::Open(const EngineOptions& options,
                                                  const ModelConfig& config) {
  if (options.adapters.size() > kMaxAdapters) {
    return absl::InvalidArgumentError(absl::StrCat(options.adapters.size(),
                                                   " adapters are given, at most ", kMaxAdapters,
                                                   " are served; leave some out"));
  }
  ModelAdapters adapters;
  std::set<std::string> names;
  for (const auto& [name, dir] : options.adapters) {
    FOLIO_RETURN_IF_ERROR(About(name, CheckName(name)));
    if (!names.insert(name).second) {
      return About(name, absl::InvalidArgumentError("is given twice; give each a name of its own"));
    }
    auto file = AdapterFile::Open(dir, config);
    FOLIO_RETURN_IF_ERROR(About(name, file.status()));
    adapters.adapters_.push_back({name, *std::move(file)});
  }
  return adapters;
}

int64_t ModelAdapters::bytes(int max_step_rows) const {
  int64_t bytes = max_step_rows * max_rank() * static_cast<int64_t>(sizeof(float));
  for (const Named& adapter : adapters_) bytes += adapter.file.bytes();
  return bytes;
}

int64_t ModelAdapters::max_rank() const {
  int64_t rank = 0;
  for (const Named& adapter : adapters_) rank = std::max(rank, adapter.file.max_rank());
  return rank;
}

absl::Status ModelAdapters::Load(LoadedModel* model) const {
  for (const auto& [name, file] : adapters_) {
    TensorDigests digests;
    auto weights = file.Load(model->backend.get(),
                             [&](const std::string& tensor_name, const TensorView& tensor) {
                               digests.Add(tensor_name, tensor);
                             });
    FOLIO_RETURN_IF_ERROR(About(name, weights.status()));
    model->adapters.push_back(*std::move(weights));
    const Fingerprint content = AdapterFingerprint(file.config_text(), digests);
    const std::string bytes(reinterpret_cast<const char*>(content.data()), content.size());
    model->attention.adapters.push_back({name, absl::BytesToHexString(bytes)});
    model->info.adapters.push_back({name, file.config().rank, file.config().targets, file.bytes()});
  }
  return absl::OkStatus();
}

}  // namespace folio
