#include "engine/runtime/model_tiers.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/gguf_config.h"
#include "engine/model/gguf_file.h"
#include "engine/model/synthetic_model.h"
#include "engine/runtime/open_files.h"
#include "engine/tokenizer/gguf_tokenizer.h"

namespace folio {
namespace {

// In --kv-dir.
constexpr char kPagesDirectory[] = "pages";
constexpr char kStoreDirectory[] = "store";

// What stored documents are good for.
struct Identity {
  Fingerprint tokenizer = {};
  Fingerprint model = {};
};
std::string BytesOfFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The small files of a model.
struct ConfigFiles {
  std::string config;
  std::vector<ModelFile> tokenizer;
};

absl::StatusOr<ConfigFiles> ReadConfigFiles(const std::string& model_dir) {
  ConfigFiles files;
  if (IsSynthetic(model_dir)) {
    files.config = model_dir;  // says all of it
    return files;
  }
  if (IsModelFile(model_dir)) {
    FOLIO_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model_dir));
    FOLIO_ASSIGN_OR_RETURN(files.config, GgufConfigJson(file));
    FOLIO_ASSIGN_OR_RETURN(const TokenizerFiles tokenizer, GgufTokenizerFiles(file));
    for (const auto& [name, bytes] : tokenizer) files.tokenizer.push_back({name, bytes});
    return files;
  }
  const std::filesystem::path dir(model_dir);
  files.config = BytesOfFile(dir / "config.json");
  for (const char* name : {"tokenizer.model", "tokenizer.json", "tokenizer_config.json"}) {
    if (std::filesystem::exists(dir / name)) {
      files.tokenizer.push_back({name, BytesOfFile(dir / name)});
    }
  }
  return files;
}

// The numbers of the weights and of the cache, by name. Integers had bf16 scales once.
std::string NumbersOf(const WeightPrecision& precision) {
  return precision.name() + (precision.integers() ? ", fp16 scales" : "");
}

std::string NumbersOf(const KvGeometry& geometry) {
  return absl::StrCat(geometry.dtype_name(),
                      geometry.coarse_summaries ? ", 8-bit summaries by tile" : "");
}

Identity IdentityOf(ConfigFiles files, const TensorDigests& tensors, const KvGeometry& geometry,
                    const WeightPrecision& precision) {
  Identity identity;
  identity.tokenizer = TokenizerFingerprint(std::move(files.tokenizer));
  const ModelContent content{.config = std::move(files.config),
                             .tokenizer = identity.tokenizer,
                             .tensors = tensors,
                             .page_tokens = geometry.page_tokens,
                             .kv_dtype = NumbersOf(geometry),
                             .weights = NumbersOf(precision)};
  identity.model = content.MakeFingerprint();
  return identity;
}

}  // namespace

absl::Status CheckTiers(const EngineOptions& options, Backend* backend) {
  const bool on_host = backend->host_tier() == nullptr;
  if (!on_host && !options.kv_dir.empty() && options.kv_host_bytes == 0) {
    return absl::InvalidArgumentError(
        "--kv-dir on a GPU needs --kv-host-bytes: the memory of the host through which pages go to "
        "the disk and come from it");
  }
  if (on_host && options.kv_host_bytes > 0) {
    return absl::InvalidArgumentError(
        "--kv-host-bytes is for a GPU; on the CPU --kv-bytes is the memory of the host, and "
        "--kv-dir takes what finds no room in it");
  }
  return absl::OkStatus();
}

absl::StatusOr<KvTiers> SetupTiers(const EngineOptions& options, const KvGeometry& geometry,
                                   LoadedModel* model) {
  const int step_tokens = model->scheduler.step_tokens;
  if (!options.kv_dir.empty()) {
    FOLIO_ASSIGN_OR_RETURN(model->files, OpenFiles(options, options.kv_dir));
  }
  if (options.kv_host_bytes > 0) {
    return KvTiers{.host = model->backend->host_tier(),
                   .home_bytes = options.kv_host_bytes,
                   .step_tokens = step_tokens};
  }
  if (options.kv_dir.empty()) return KvTiers{.step_tokens = step_tokens};
  FOLIO_ASSIGN_OR_RETURN(
      model->home,
      SegmentHome::Create(model->files.get(), kPagesDirectory,
                          {.num_slices = geometry.num_slices(),
                           .slice_bytes = FramePool::RoundedBytes(geometry.sealed_slice_bytes()),
                           .deadline = options.read_deadline}));
  FOLIO_ASSIGN_OR_RETURN(const int64_t disk_bytes,
                         DiskBytes(options.kv_dir, options.kv_disk_bytes, "--kv-disk-bytes"));
  return KvTiers{.home = model->home.get(), .home_bytes = disk_bytes, .step_tokens = step_tokens};
}

absl::Status SetupKeeper(const EngineOptions& options, const KvGeometry& geometry,
                         const TensorDigests& tensors, LoadedModel* model) {
  if (options.kv_dir.empty() || model->tokenizer == nullptr) return absl::OkStatus();
  const std::string dir = absl::StrCat(options.kv_dir, "/", kStoreDirectory);
  FOLIO_ASSIGN_OR_RETURN(model->document_files, OpenFiles(options, dir));
  FOLIO_ASSIGN_OR_RETURN(const int64_t quota, DiskBytes(dir, options.store_bytes, "--store-bytes"));
  FOLIO_ASSIGN_OR_RETURN(ConfigFiles files, ReadConfigFiles(options.model_dir));
  const Identity identity = IdentityOf(std::move(files), tensors, geometry, model->precision);
  FOLIO_ASSIGN_OR_RETURN(
      model->keeper,
      DocumentKeeper::Open(model->document_files.get(), model->home.get(), model->tokenizer.get(),
                           {.model = identity.model,
                            .tokenizer = identity.tokenizer,
                            .quota_bytes = quota,
                            .page_tokens = geometry.page_tokens,
                            .read_deadline = options.read_deadline}));
  return absl::OkStatus();
}

}  // namespace folio
