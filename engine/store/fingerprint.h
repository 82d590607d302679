#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/store/content_key.h"
#include "engine/tensor/tensor_digest.h"
#include "engine/tensor/tensor_view.h"

namespace folio {

// Whose tokens and whose KV a store holds is decided by content: the name of a model, or where it
// lies, is in no fingerprint.

// A file of a model, by the name that its format gives it ("tokenizer.json").
struct ModelFile {
  std::string name;
  std::string bytes;
};

// Of all files that decide which ids a text becomes, in any order: stored token ids stay valid as
// long as it is the same.
Fingerprint TokenizerFingerprint(std::vector<ModelFile> files);

// XXH3-128 of the bytes of tensors, taken while a model is loaded: Add can be the observer of
// LoadWeights. One thread.
class TensorDigests {
 public:
  // In any order. One that was given before is not hashed again.
  void Add(const std::string& name, const TensorView& tensor);

  int64_t num_tensors() const { return static_cast<int64_t>(tensors_.size()); }
  const TensorDigestMap& tensors() const { return tensors_; }
  // Those that were taken before.
  void Set(TensorDigestMap tensors) { tensors_ = std::move(tensors); }

 private:
  TensorDigestMap tensors_;
};

// Of an adapter: its config, byte for byte, and its tensors.
Fingerprint AdapterFingerprint(const std::string& config, const TensorDigests& tensors);

// Everything that stored KV depends on beside the attention and the text.
struct ModelContent {
  std::string config;  // the bytes of config.json
  Fingerprint tokenizer;
  const TensorDigests& tensors;
  int page_tokens = 0;
  std::string kv_dtype;
  std::string weights;  // the numbers they are kept in, by name

  // Includes the version of the format of segments. Stored KV stays valid as long as it is the
  // same.
  Fingerprint MakeFingerprint() const;
};

}  // namespace folio
