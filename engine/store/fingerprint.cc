#include "engine/store/fingerprint.h"

#include <algorithm>

#include "engine/base/checksum.h"
#include "engine/store/segment_file.h"
#include "engine/store/sha256.h"

namespace folio {

Fingerprint TokenizerFingerprint(std::vector<ModelFile> files) {
  std::sort(files.begin(), files.end(),
            [](const ModelFile& a, const ModelFile& b) { return a.name < b.name; });
  Sha256 hash("folio tokenizer 1");
  hash.Add(uint64_t{files.size()});
  for (const ModelFile& file : files) {
    hash.Add(file.name);
    hash.Add(file.bytes);
  }
  return hash.Finish();
}

void TensorDigests::Add(const std::string& name, const TensorView& tensor) {
  const auto [it, is_new] = tensors_.try_emplace(name);
  if (!is_new) return;
  const auto num_bytes = static_cast<size_t>(tensor.num_bytes());
  it->second = {tensor.dtype,
                {tensor.shape.begin(), tensor.shape.begin() + tensor.rank},
                Checksum128({static_cast<const std::byte*>(tensor.data), num_bytes})};
}

namespace {

void AddTensors(const TensorDigests& tensors, Sha256* hash) {
  hash->Add(uint64_t{tensors.tensors().size()});
  for (const auto& [name, digest] : tensors.tensors()) {
    hash->Add(name);
    hash->Add(DTypeName(digest.dtype));
    hash->Add(uint64_t{digest.shape.size()});
    for (const int64_t size : digest.shape) hash->Add(static_cast<uint64_t>(size));
    for (const uint64_t half : digest.hash) hash->Add(half);
  }
}

}  // namespace

Fingerprint AdapterFingerprint(const std::string& config, const TensorDigests& tensors) {
  Sha256 hash("folio adapter 1");
  hash.Add(config);
  AddTensors(tensors, &hash);
  return hash.Finish();
}

Fingerprint ModelContent::MakeFingerprint() const {
  Sha256 hash("folio model 1");
  hash.Add(config);
  hash.Add(tokenizer);
  AddTensors(tensors, &hash);
  hash.Add(static_cast<uint64_t>(page_tokens));
  hash.Add(kv_dtype);
  hash.Add(weights);
  hash.Add(uint64_t{kSegmentVersion});
  return hash.Finish();
}

}  // namespace folio
