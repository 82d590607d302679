#include "server/document_upload.h"

#include <openssl/crypto.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/short_for_now.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

constexpr int64_t kMicroseconds = 1000000;  // in a second

std::string FreshToken() {
  std::random_device random;
  std::string token;
  for (int n = 0; n < 4; ++n) absl::StrAppend(&token, absl::Hex(random(), absl::kZeroPad8));
  return token;
}

}  // namespace

DocumentUpload::DocumentUpload(std::string name, std::string given_token, Surroundings surroundings)
    : DocumentUpload(std::move(name), given_token.empty() ? FreshToken() : std::move(given_token),
                     std::time(nullptr), 0, std::move(surroundings)) {}

DocumentUpload::DocumentUpload(const StoredText& stored, Surroundings surroundings)
    : DocumentUpload(stored.name, stored.upload_token,
                     static_cast<std::time_t>(stored.created_us / kMicroseconds),
                     static_cast<uint64_t>(stored.num_bytes), std::move(surroundings)) {}

DocumentUpload::DocumentUpload(std::string name, std::string its_token, std::time_t created,
                               uint64_t text_bytes, Surroundings surroundings)
    : display_name(std::move(name)),
      token(std::move(its_token)),
      create_time(created),
      surroundings_(std::move(surroundings)),
      text_(surroundings_.tokenizer, text_bytes),
      held_text_(*surroundings_.memory->Take(0)),
      begun_(text_bytes > 0),
      last_byte_(surroundings_.clock()),
      size_bytes_(text_bytes),
      awaits_stored_tokens_(text_bytes > 0) {}

StoredText DocumentUpload::stored_text() const {
  StoredText stored;
  stored.name = display_name;
  stored.upload_token = token;
  stored.created_us = int64_t{create_time} * kMicroseconds;
  return stored;
}

void DocumentUpload::OnTokensRead(std::span<const int32_t> tokens) {
  MutexLock lock(&mu_);
  if (!std::exchange(awaits_stored_tokens_, false)) return;
  NoteOffsets(tokens);
  NoteOffsets(std::exchange(later_tokens_, {}));
}

bool DocumentUpload::HasToken(std::string_view other) const {
  return other.size() == token.size() &&
         CRYPTO_memcmp(other.data(), token.data(), token.size()) == 0;
}

int64_t DocumentUpload::MemoryFor(size_t held_bytes) const {
  return static_cast<int64_t>(held_bytes * (1 + surroundings_.tokenizer.encode_bytes_per_byte()));
}

absl::StatusOr<std::vector<int32_t>> DocumentUpload::Add(std::string_view part) {
  std::vector<int32_t> tokens;
  const size_t held = text_.held_bytes() + part.size();
  const int64_t needed = MemoryFor(held);
  if (!held_text_.GrowTo(needed)) {
    const std::string message = absl::StrCat(
        "tokenising ", held, " bytes of text without a place to cut, such as a space between two ",
        "words, needs ", needed, " bytes; see --max-request-memory-bytes");
    return needed <= surroundings_.memory->limit() ? ShortForNow(message)
                                                   : absl::ResourceExhaustedError(message);
  }
  FOLIO_RETURN_IF_ERROR(text_.Add(part, &tokens));
  held_text_.ShrinkTo(MemoryFor(text_.held_bytes()));
  NoteTokens(&tokens, part.size());
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> DocumentUpload::Finish() {
  std::vector<int32_t> tokens;
  FOLIO_RETURN_IF_ERROR(text_.Finish(&tokens));
  held_text_.ShrinkTo(0);
  NoteTokens(&tokens, 0);
  return tokens;
}

void DocumentUpload::NoteTokens(std::vector<int32_t>* tokens, size_t num_bytes) {
  const Tokenizer& tokenizer = surroundings_.tokenizer;
  if (!begun_ && tokenizer.bos_id() >= 0) tokens->insert(tokens->begin(), tokenizer.bos_id());
  begun_ = true;
  MutexLock lock(&mu_);
  last_byte_ = surroundings_.clock();
  size_bytes_ += num_bytes;
  if (awaits_stored_tokens_) {
    later_tokens_.insert(later_tokens_.end(), tokens->begin(), tokens->end());
  } else {
    NoteOffsets(*tokens);
  }
}

void DocumentUpload::NoteOffsets(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (num_tokens_++ % kOffsetStride == 0) byte_offsets_.push_back(num_piece_bytes_);
    num_piece_bytes_ += surroundings_.tokenizer.pieces()[token].text.size();
  }
}

uint64_t DocumentUpload::size_bytes() const {
  MutexLock lock(&mu_);
  return size_bytes_;
}

SteadyTime DocumentUpload::expires_at() const {
  MutexLock lock(&mu_);
  return last_byte_ + surroundings_.patience;
}

std::time_t DocumentUpload::expire_time() const {
  const auto left = expires_at() - surroundings_.clock();
  return std::time(nullptr) + std::chrono::duration_cast<std::chrono::seconds>(left).count();
}

std::optional<uint64_t> DocumentUpload::ByteOffset(int64_t token) const {
  MutexLock lock(&mu_);
  // Some tokenizers put one space in front of the text.
  const uint64_t added = num_piece_bytes_ - size_bytes_;
  if (num_piece_bytes_ < size_bytes_ || added > 1) return std::nullopt;
  if (token >= num_tokens_) return size_bytes_;
  if (token % kOffsetStride != 0) return std::nullopt;
  const uint64_t offset = byte_offsets_[token / kOffsetStride];
  return offset == 0 ? 0 : offset - added;
}

}  // namespace folio::server
