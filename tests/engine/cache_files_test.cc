// Which stored segments are those of a cache: by the tokens that they were made of. How they come
// to be stored.
#include "engine/runtime/cache_files.h"

#include <filesystem>
#include <numeric>
#include <vector>

#include "engine/store/posix_files.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_loop_fixture.h"
#include "tests/engine/test_model.h"

namespace folio::test {
namespace {

constexpr int kPagesOfSegment = 64;

class CacheFiles : public testing::Test {
 protected:
  struct Cache {
    CacheImage image;
    std::vector<ContentKey> keys;
  };
  Cache CacheOf(const std::vector<int32_t>& tokens) const {
    Cache cache;
    cache.image.geometry = kGeometry;
    cache.image.layout = store_->LayoutOf(plan_, std::ssize(tokens));
    cache.image.page_slice_bytes = kGeometry.slice_bytes();
    cache.keys = SegmentKeys({}, "long_heads()", tokens, kGeometry.page_tokens);
    return cache;
  }
  static std::vector<int32_t> Tokens(size_t count) {
    std::vector<int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 3);
    return tokens;
  }
  // As it is stored: each segment with the one key under which it is found.
  static StoredRendition Stored(const Cache& cache) {
    const std::vector<SegmentShape> shapes = SegmentShapes(cache.image);
    StoredRendition rendition;
    for (size_t n = 0; n < shapes.size(); ++n) {
      int num_found = 0;
      for (const ContentKey& key : cache.keys) {
        StoredRendition one;
        one.segments.emplace_back();
        one.segments.back().shape = shapes[n];
        one.segments.back().key = key;
        if (SegmentsThere(cache.image, cache.keys, &one)[n] == nullptr) continue;
        rendition.segments.push_back(one.segments.back());
        ++num_found;
      }
      EXPECT_EQ(num_found, 1) << n;
    }
    return rendition;
  }
  // First tokens behind those that the segments were made of that `cache` finds in `stored`, of a
  // kind; in their order.
  std::vector<int64_t> Found(const Cache& cache, const StoredRendition& stored,
                             SegmentKind kind) const {
    std::vector<int64_t> ends;
    for (const StoredSegment* segment : SegmentsThere(cache.image, cache.keys, &stored)) {
      if (segment == nullptr || segment->shape.kind != kind) continue;
      const int64_t end = segment->shape.first_page + segment->shape.num_pages;
      const CacheLayout& layout = cache.image.layout;
      const bool pages = kind == SegmentKind::kPages;
      ends.push_back(pages ? end * kGeometry.page_tokens
                           : end / layout.summary_vectors * layout.summary_tokens);
    }
    return ends;
  }
  int64_t SummaryTokens() const {  // of a segment of summaries
    const CacheLayout layout = store_->LayoutOf(plan_, 1 << 20);
    return kPagesOfSegment / layout.summary_vectors * layout.summary_tokens;
  }

  const std::unique_ptr<KvStore> store_ = *KvStore::Create(kGeometry, 100 * 4096, HostMemory());
  const AttentionPlan plan_ = PlanFor(Attention("long_heads"), Model());
};

TEST_F(CacheFiles, SegmentsThatAreFullStayWhenATextGrows) {
  const int64_t of_summaries = SummaryTokens();
  const int64_t count = 2 * of_summaries + 700;
  const Cache small = CacheOf(Tokens(static_cast<size_t>(count)));
  const Cache large = CacheOf(Tokens(static_cast<size_t>(count + 5000)));
  const StoredRendition stored = Stored(small);
  EXPECT_TRUE(IsCacheOf(stored, small.image, small.keys));
  EXPECT_FALSE(IsCacheOf(stored, large.image, large.keys));
  const auto pages = Found(large, stored, SegmentKind::kPages);
  EXPECT_EQ(std::ssize(pages), count / (kPagesOfSegment * kGeometry.page_tokens));
  EXPECT_EQ(Found(large, stored, SegmentKind::kSummaries),
            (std::vector<int64_t>{of_summaries, 2 * of_summaries}));
}

TEST_F(CacheFiles, SegmentsThatWereMadeOfOtherTokensAreNotFound) {
  const int64_t of_summaries = SummaryTokens();
  const std::vector<int32_t> tokens = Tokens(static_cast<size_t>(3 * of_summaries));
  const Cache cache = CacheOf(tokens);
  const StoredRendition stored = Stored(cache);
  EXPECT_TRUE(IsCacheOf(stored, cache.image, cache.keys));
  std::vector<int32_t> others = tokens;
  others[static_cast<size_t>(2 * of_summaries) - 1] = 2;  // the last one of the second segment
  const Cache other = CacheOf(others);
  EXPECT_FALSE(IsCacheOf(stored, other.image, other.keys));
  EXPECT_EQ(Found(other, stored, SegmentKind::kSummaries), (std::vector<int64_t>{of_summaries}));
  const int64_t of_pages = kPagesOfSegment * kGeometry.page_tokens;
  const auto pages = Found(other, stored, SegmentKind::kPages);
  ASSERT_FALSE(pages.empty());
  EXPECT_EQ(pages.back(), (2 * of_summaries - 1) / of_pages * of_pages);
}

TEST_F(CacheFiles, ACacheIsNoneOfFewerOrOtherSegments) {
  const Cache cache = CacheOf(Tokens(5000));
  const StoredRendition whole = Stored(cache);
  StoredRendition one_less = whole;
  one_less.segments.pop_back();
  EXPECT_FALSE(IsCacheOf(one_less, cache.image, cache.keys));
  StoredRendition other_shape = whole;
  other_shape.segments.back().shape.slice_bytes *= 2;
  EXPECT_FALSE(IsCacheOf(other_shape, cache.image, cache.keys));
}

// Sealed pages of a sequence in the files of a home, and the document that they are saved to.
class SavedPages : public testing::Test {
 protected:
  static constexpr int kNumPages = SegmentHome::kPages + 10;

  void SetUp() override {
    const auto slice_bytes = static_cast<size_t>(kGeometry.slice_bytes());
    image_.geometry = kGeometry;
    image_.page_slice_bytes = kGeometry.slice_bytes();
    image_.layout.page_tokens = kGeometry.page_tokens;
    image_.layout.open_page = image_.layout.end_page = image_.first_in_memory = kNumPages;
    for (int page = 0; page < kNumPages; ++page) {
      pages_.emplace_back(slice_bytes, static_cast<std::byte>(page + 1));
      home_->StartWrite(page, 1, {pages_.back().data()});
    }
    std::vector<PageHome::Written> written;
    for (int count = 0; count < kNumPages; count += static_cast<int>(written.size())) {
      home_->TakeWritten(true, &written);
    }
    for (int page = 0; page < kNumPages; ++page) {
      image_.sealed_pages.push_back(home_->PlaceOf(page));
    }
  }
  // Writes all of them; the segments, whose content is what it must be.
  std::vector<StoredSegment> Save() {
    DiskProgress progress;
    const std::vector<const StoredSegment*> none(SegmentShapes(image_).size(), nullptr);
    auto segments = WriteCache(image_, keys_, none, rendition_, writer_.get(), &progress);
    EXPECT_TRUE(segments.ok()) << segments.status();
    for (const StoredSegment& stored : *segments) {
      const auto segment = store_->OpenSegment(writer_->handle(), rendition_, stored);
      EXPECT_TRUE(segment.ok()) << segment.status();
      for (int page = 0; page < stored.shape.num_pages; ++page) {
        std::vector<std::byte> got(pages_[0].size());
        std::byte* const to = got.data();
        EXPECT_TRUE(segment->Read(0, page, {&to, 1}).ok());
        EXPECT_EQ(got, pages_[static_cast<size_t>(stored.shape.first_page + page)]);
      }
    }
    return *std::move(segments);
  }
  static NewDocument Document() {
    NewDocument document;
    document.handle = {"d", 1};
    return document;
  }
  // Names of a segment's file.
  uint64_t NumNames(const StoredSegment& segment) const {
    return std::filesystem::hard_link_count(dir_.path() + "/store/documents/d/" +
                                            std::to_string(rendition_) + "/" +
                                            std::to_string(segment.file));
  }

  const ScratchDir dir_;
  const std::unique_ptr<FileSystem> page_files_ = *OpenPosixFiles(dir_.path() + "/pages");
  const std::unique_ptr<FileSystem> files_ = *OpenPosixFiles(dir_.path() + "/store");
  const std::unique_ptr<SegmentHome> home_ = *SegmentHome::Create(
      page_files_.get(), "pages",
      {.num_slices = kGeometry.num_slices(), .slice_bytes = kGeometry.slice_bytes()});
  const std::unique_ptr<DocumentStore> store_ = *DocumentStore::Open(files_.get(), {});
  const std::unique_ptr<DocumentWriter> writer_ = *store_->Begin(Document());
  const int64_t rendition_ = *writer_->RenditionOf({}, "full");
  const std::vector<ContentKey> keys_ = SegmentKeys(
      {}, "full", std::vector<int32_t>(kNumPages* kGeometry.page_tokens, 3), kGeometry.page_tokens);
  std::vector<std::vector<std::byte>> pages_;
  CacheImage image_;
};

TEST_F(SavedPages, AFileOfAllPagesOfASegmentBecomesTheSegment) {
  const std::vector<StoredSegment> segments = Save();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(NumNames(segments[0]), 2u);
  EXPECT_EQ(NumNames(segments[1]), 1u);  // it may get more pages
}

TEST_F(SavedPages, TheFileOfASegmentIsNotMadeAnother) {
  const std::vector<StoredSegment> first = Save();
  const std::vector<StoredSegment> second = Save();
  EXPECT_EQ(NumNames(first[0]), 2u);
  EXPECT_EQ(NumNames(second[0]), 1u);
}

TEST_F(SavedPages, PagesInAnotherOrderAreCopied) {
  std::swap(image_.sealed_pages[0], image_.sealed_pages[1]);
  std::swap(pages_[0], pages_[1]);
  EXPECT_EQ(NumNames(Save()[0]), 1u);
}

}  // namespace
}  // namespace folio::test
