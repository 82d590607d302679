#include "engine/store/manifest.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"
#include "engine/store/byte_codec.h"
#include "engine/store/document_id.h"

namespace folio {
namespace {

constexpr char kMagic[] = "FOLIODOC";
constexpr size_t kHeadBytes = 16;  // magic, version, length of the whole
constexpr size_t kChecksumBytes = 8;
// Beyond these a manifest is nonsense.
constexpr size_t kMaxManifestBytes = size_t{64} << 20;
constexpr size_t kMaxNameBytes = 64 << 10;
constexpr size_t kMaxLabelBytes = 64 << 10;
constexpr size_t kMaxLabels = 1024;
constexpr size_t kMaxAttentionBytes = 64 << 10;
constexpr size_t kMaxRenditions = 4096;
constexpr size_t kSegmentBytes = 8 + 1 + 4 + 4 + 8 + 8 + 32;
constexpr int64_t kMaxBytes = int64_t{1} << 56;   // of a file: sums of them do not overflow
constexpr int64_t kMaxNumber = int64_t{1} << 56;  // of names that are counted

uint64_t ChecksumOf(std::string_view bytes) {
  return Checksum(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

void PutKey(const ContentKey& key, ByteWriter* out) {
  out->Raw({reinterpret_cast<const char*>(key.data()), key.size()});
}
ContentKey TakeKey(ByteReader* in) {
  ContentKey key{};
  const std::string_view raw = in->Raw(key.size());
  std::copy(raw.begin(), raw.end(), key.begin());
  return key;
}

void PutLog(const LogEnd& end, ByteWriter* out) {
  out->Number(end.num_items);
  out->Number(end.num_bytes);
  out->Number(end.checksum);
}
LogEnd TakeLog(ByteReader* in) {
  LogEnd end;
  end.num_items = in->Number<int64_t>();
  end.num_bytes = in->Number<int64_t>();
  end.checksum = in->Number<uint64_t>();
  return end;
}

void PutAttributes(const DocumentAttributes& attributes, ByteWriter* out) {
  out->Number(static_cast<uint32_t>(attributes.labels.size()));
  for (const auto& [key, value] : attributes.labels) {
    out->String(key);
    out->String(value);
  }
  out->Number(attributes.last_used_us);
  out->Number(attributes.ttl_us);
  out->Number(static_cast<uint8_t>(attributes.pinned));
}
DocumentAttributes TakeAttributes(ByteReader* in) {
  DocumentAttributes attributes;
  const auto count = in->Number<uint32_t>();
  if (count > kMaxLabels) in->Fail();
  for (uint32_t n = 0; n < count && in->ok(); ++n) {
    std::string key(in->String(kMaxLabelBytes));
    // In order, each once: a manifest has one encoding.
    if (!attributes.labels.empty() && key <= attributes.labels.rbegin()->first) in->Fail();
    attributes.labels[std::move(key)] = in->String(kMaxLabelBytes);
  }
  attributes.last_used_us = in->Number<int64_t>();
  attributes.ttl_us = in->Number<int64_t>();
  const auto pinned = in->Number<uint8_t>();
  if (pinned > 1 || attributes.ttl_us < 0) in->Fail();
  attributes.pinned = pinned == 1;
  return attributes;
}

void PutSegment(const StoredSegment& segment, ByteWriter* out) {
  out->Number(segment.file);
  out->Number(static_cast<uint8_t>(segment.shape.kind));
  out->Number(static_cast<int32_t>(segment.shape.num_slices));
  out->Number(static_cast<int32_t>(segment.shape.num_pages));
  out->Number(segment.shape.slice_bytes);
  out->Number(segment.shape.first_page);
  PutKey(segment.key, out);
}
StoredSegment TakeSegment(ByteReader* in) {
  StoredSegment segment;
  segment.file = in->Number<int64_t>();
  segment.shape.kind = static_cast<SegmentKind>(in->Number<uint8_t>());
  segment.shape.num_slices = in->Number<int32_t>();
  segment.shape.num_pages = in->Number<int32_t>();
  segment.shape.slice_bytes = in->Number<int64_t>();
  segment.shape.first_page = in->Number<int64_t>();
  segment.key = TakeKey(in);
  if (segment.file < 0 || segment.file > kMaxNumber || !segment.shape.Check().ok()) in->Fail();
  return segment;
}

void PutRendition(const StoredRendition& rendition, ByteWriter* out) {
  out->Number(rendition.number);
  PutKey(rendition.model, out);
  out->String(rendition.attention);
  out->Number(rendition.num_tokens);
  out->Number(static_cast<uint32_t>(rendition.segments.size()));
  for (const StoredSegment& segment : rendition.segments) PutSegment(segment, out);
}
StoredRendition TakeRendition(ByteReader* in) {
  StoredRendition rendition;
  rendition.number = in->Number<int64_t>();
  rendition.model = TakeKey(in);
  rendition.attention = in->String(kMaxAttentionBytes);
  rendition.num_tokens = in->Number<int64_t>();
  const auto count = in->Number<uint32_t>();
  if (count > in->left_bytes() / kSegmentBytes) in->Fail();
  std::set<int64_t> names;
  for (uint32_t n = 0; n < count && in->ok(); ++n) {
    const StoredSegment& segment = rendition.segments.emplace_back(TakeSegment(in));
    if (!names.insert(segment.file).second) in->Fail();
  }
  return rendition;
}

void PutManifest(const Manifest& manifest, ByteWriter* out) {
  out->String(manifest.id);
  out->String(manifest.name);
  out->String(manifest.upload_token);
  out->String(manifest.attention);
  out->Number(manifest.incarnation);
  out->Number(manifest.created_us);
  out->Number(manifest.updated_us);
  out->Number(static_cast<uint8_t>(manifest.state));
  PutAttributes(manifest.attributes, out);
  PutKey(manifest.tokenizer, out);
  out->Number(manifest.text_bytes);
  PutLog(manifest.logs.tokens, out);
  PutLog(manifest.logs.offsets, out);
  out->Number(static_cast<uint32_t>(manifest.renditions.size()));
  for (const StoredRendition& rendition : manifest.renditions) PutRendition(rendition, out);
  out->String(manifest.prompt_format);
  out->Number(manifest.lead_bytes);
}
Manifest TakeManifest(uint32_t version, ByteReader* in) {
  Manifest manifest;
  manifest.id = in->String(kMaxDocumentIdBytes);
  manifest.name = in->String(kMaxNameBytes);
  manifest.upload_token = in->String(kMaxNameBytes);
  manifest.attention = in->String(kMaxAttentionBytes);
  manifest.incarnation = in->Number<uint64_t>();
  manifest.created_us = in->Number<int64_t>();
  manifest.updated_us = in->Number<int64_t>();
  manifest.state = static_cast<StoredState>(in->Number<uint8_t>());
  manifest.attributes = TakeAttributes(in);
  manifest.tokenizer = TakeKey(in);
  manifest.text_bytes = in->Number<int64_t>();
  manifest.logs.tokens = TakeLog(in);
  manifest.logs.offsets = TakeLog(in);
  const auto count = in->Number<uint32_t>();
  if (count > kMaxRenditions) in->Fail();
  std::set<int64_t> names;
  for (uint32_t n = 0; n < count && in->ok(); ++n) {
    const StoredRendition& rendition = manifest.renditions.emplace_back(TakeRendition(in));
    if (!names.insert(rendition.number).second) in->Fail();
  }
  if (version < 2) return manifest;
  manifest.prompt_format = in->String(kMaxNameBytes);
  manifest.lead_bytes = in->Number<int64_t>();
  return manifest;
}

// Items of `item_bytes` and more, in records that take bytes themselves.
bool IsPossible(const LogEnd& end, int64_t item_bytes) {
  if (end.num_items == 0) return end == LogEnd{};
  return end.num_items > 0 && end.num_bytes > RecordLog::kRecordOverheadBytes &&
         end.num_bytes <= kMaxBytes && end.num_items <= end.num_bytes / item_bytes;
}

bool IsPossible(const Manifest& manifest) {
  int64_t total = 0;
  for (const StoredRendition& rendition : manifest.renditions) {
    if (rendition.number < 0 || rendition.number > kMaxNumber || rendition.num_tokens < 0 ||
        rendition.num_tokens > manifest.num_tokens()) {
      return false;
    }
    for (const StoredSegment& segment : rendition.segments) {
      total += segment.num_bytes();
      if (total > kMaxBytes) return false;
    }
  }
  return CheckDocumentId(manifest.id).ok() && manifest.state <= StoredState::kComplete &&
         manifest.text_bytes >= 0 && manifest.lead_bytes >= 0 &&
         IsPossible(manifest.logs.tokens, sizeof(int32_t)) &&
         IsPossible(manifest.logs.offsets, 1) &&
         manifest.logs.tokens.num_items == manifest.logs.offsets.num_items;
}

}  // namespace

int64_t StoredRendition::num_bytes() const {
  int64_t total = 0;
  for (const StoredSegment& segment : segments) total += segment.num_bytes();
  return total;
}

int64_t Manifest::data_bytes() const {
  int64_t total = logs.tokens.num_bytes + logs.offsets.num_bytes;
  for (const StoredRendition& rendition : renditions) total += rendition.num_bytes();
  return total;
}

const StoredRendition* Manifest::FindRendition(int64_t number) const {
  for (const StoredRendition& rendition : renditions) {
    if (rendition.number == number) return &rendition;
  }
  return nullptr;
}

absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest) {
  ByteWriter fields;
  PutManifest(manifest, &fields);
  ByteWriter out;
  out.Raw(kMagic);
  out.Number(kManifestVersion);
  out.Number(static_cast<uint32_t>(kHeadBytes + fields.bytes().size() + kChecksumBytes));
  out.Raw(fields.bytes());
  out.Number(ChecksumOf(out.bytes()));
  const auto read = DecodeManifest(out.bytes());
  if (read.ok() && *read == manifest) return out.bytes();
  return absl::InvalidArgumentError(absl::StrCat(
      "a manifest with ", manifest.name.size(), " bytes of a name (up to ", kMaxNameBytes, "), ",
      manifest.attributes.labels.size(), " labels (up to ", kMaxLabels, " of ", kMaxLabelBytes,
      " bytes), ", manifest.renditions.size(), " renditions (up to ", kMaxRenditions, ") and ",
      out.bytes().size(), " bytes in all (up to ", kMaxManifestBytes,
      ") cannot be stored: ", read.status().message()));
}

absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes) {
  const auto lost = [](const char* why) { return absl::DataLossError(why); };
  if (bytes.size() > kMaxManifestBytes) return lost("is too large for a manifest");
  ByteReader in(bytes);
  const std::string_view magic = in.Raw(sizeof(kMagic) - 1);
  const auto version = in.Number<uint32_t>();
  const auto length = in.Number<uint32_t>();
  if (!in.ok() || magic != kMagic) return lost("is no manifest");
  if (version < 1 || version > kManifestVersion) return lost("is a manifest of another version");
  if (length != bytes.size() || length < kHeadBytes + kChecksumBytes) {
    return lost("is a manifest that was cut");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (ByteReader(bytes.substr(body.size())).Number<uint64_t>() != ChecksumOf(body)) {
    return lost("is a damaged manifest");
  }
  ByteReader fields(body.substr(kHeadBytes));
  Manifest manifest = TakeManifest(version, &fields);
  if (!fields.ok() || fields.left_bytes() > 0 || !IsPossible(manifest)) {
    return lost("is a manifest that says what cannot be");
  }
  return manifest;
}

absl::StatusOr<ManifestFile> ReadManifest(FileSystem* files, const std::string& path) {
  FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<StoredFile> file, files->Open(path));
  const int64_t size = file->size_bytes();
  if (size > static_cast<int64_t>(kMaxManifestBytes)) {
    return absl::DataLossError(absl::StrCat(path, " is too large for a manifest"));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  const StoredFile::Piece piece{reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
  FOLIO_RETURN_IF_ERROR(file->Read(0, {&piece, 1}));
  auto manifest = DecodeManifest(bytes);
  if (manifest.ok()) return ManifestFile{*std::move(manifest), size};
  return absl::Status(manifest.status().code(),
                      absl::StrCat(path, " ", manifest.status().message()));
}

}  // namespace folio
