#include "server/document_upload.h"

#include <openssl/crypto.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/random_bits.h"
#include "engine/base/short_for_now.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

constexpr int64_t kMicroseconds = 1000000;  // in a second

std::string FreshToken() {
  return absl::StrCat(absl::Hex(RandomBits(), absl::kZeroPad16),
                      absl::Hex(RandomBits(), absl::kZeroPad16));
}

// Of the text that its tokens stand for.
uint64_t BytesOf(const PromptLead& lead, const Tokenizer& tokenizer) {
  uint64_t bytes = lead.open_text.size();
  for (const int32_t token : lead.tokens) bytes += tokenizer.pieces()[token].text.size();
  return bytes;
}

}  // namespace

DocumentUpload::DocumentUpload(std::string name, std::string given_token, PromptLead lead,
                               Surroundings surroundings)
    : display_name(std::move(name)),
      token(given_token.empty() ? FreshToken() : std::move(given_token)),
      create_time(std::time(nullptr)),
      prompt_format(lead.format),
      surroundings_(std::move(surroundings)),
      lead_bytes_(BytesOf(lead, surroundings_.tokenizer)),
      lead_(std::move(lead)),
      text_(surroundings_.tokenizer, lead_.start),
      held_text_(*surroundings_.memory->Take(0)),
      begun_(false),
      last_byte_(surroundings_.clock()),
      size_bytes_(0),
      awaits_stored_tokens_(false) {}

// One of which nothing has become tokens begins anew; who goes on with it has its lead from before.
DocumentUpload::DocumentUpload(const StoredText& stored, Surroundings surroundings)
    : display_name(stored.name),
      token(stored.upload_token),
      create_time(static_cast<std::time_t>(stored.created_us / kMicroseconds)),
      prompt_format(stored.prompt_format),
      surroundings_(std::move(surroundings)),
      lead_bytes_(static_cast<uint64_t>(stored.lead_bytes)),
      text_(surroundings_.tokenizer, static_cast<size_t>(stored.num_bytes)),
      held_text_(*surroundings_.memory->Take(0)),
      begun_(true),
      last_byte_(surroundings_.clock()),
      size_bytes_(static_cast<uint64_t>(stored.num_bytes)),
      awaits_stored_tokens_(true) {}

StoredText DocumentUpload::stored_text() const {
  StoredText stored;
  stored.name = display_name;
  stored.upload_token = token;
  stored.created_us = int64_t{create_time} * kMicroseconds;
  stored.prompt_format = prompt_format;
  stored.lead_bytes = static_cast<int64_t>(lead_bytes_);
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
  const size_t held = text_.held_bytes() + lead_.open_text.size() + part.size();
  const int64_t needed = MemoryFor(held);
  if (!held_text_.GrowTo(needed)) {
    const std::string message = absl::StrCat(
        "tokenising ", held, " bytes of text without a place to cut, such as a space between two ",
        "words, needs ", needed, " bytes; see --max-request-memory-bytes");
    return needed <= surroundings_.memory->limit() ? ShortForNow(message)
                                                   : absl::ResourceExhaustedError(message);
  }
  if (!begun_) {
    tokens = lead_.tokens;
    FOLIO_RETURN_IF_ERROR(text_.Add(lead_.open_text, &tokens));
    begun_ = true;
  }
  FOLIO_RETURN_IF_ERROR(text_.Add(part, &tokens));
  held_text_.ShrinkTo(MemoryFor(text_.held_bytes()));
  NoteTokens(tokens, part.size());
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> DocumentUpload::Finish() {
  std::vector<int32_t> tokens;
  FOLIO_RETURN_IF_ERROR(text_.Finish(&tokens));
  held_text_.ShrinkTo(0);
  NoteTokens(tokens, 0);
  return tokens;
}

uint64_t DocumentUpload::tokenised_bytes() const {
  const size_t open_bytes = lead_.open_text.size();
  return text_.text_offset() < open_bytes ? 0 : text_.text_offset() - open_bytes;
}

void DocumentUpload::NoteTokens(const std::vector<int32_t>& tokens, size_t num_bytes) {
  MutexLock lock(&mu_);
  last_byte_ = surroundings_.clock();
  size_bytes_ += num_bytes;
  if (awaits_stored_tokens_) {
    later_tokens_.insert(later_tokens_.end(), tokens.begin(), tokens.end());
  } else {
    NoteOffsets(tokens);
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
  const uint64_t known = lead_bytes_ + size_bytes_;
  const uint64_t added = num_piece_bytes_ - known;
  if (num_piece_bytes_ < known || added > 1) return std::nullopt;
  if (token >= num_tokens_) return size_bytes_;
  if (token % kOffsetStride != 0) return std::nullopt;
  const uint64_t offset = byte_offsets_[token / kOffsetStride];
  return offset <= lead_bytes_ + added ? 0 : offset - lead_bytes_ - added;
}

}  // namespace folio::server
