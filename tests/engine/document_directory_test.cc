#include "engine/runtime/document_directory.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace folio {
namespace {

using State = DocumentState;

class DocumentDirectoryTest : public testing::Test {
 protected:
  DocumentHandle Create(const std::string& id) {
    return directory_.Create(id, {{"full", {}}, {}}, nullptr)->handle;
  }
  State StateOf(const DocumentHandle& handle) { return directory_.Get(handle)->state; }

  // A document that is ready, with a TTL of so many seconds.
  DocumentHandle Ready(const std::string& id, int64_t ttl_seconds) {
    const DocumentHandle handle = Create(id);
    EXPECT_TRUE(SetTtl(handle, ttl_seconds));
    EXPECT_TRUE(directory_.AddTokens(handle, 1).ok());
    EXPECT_TRUE(directory_.FinishUpload(handle).ok());
    EXPECT_EQ(directory_.SetProgress(handle, {.prefilled_tokens = 1}), State::kReady);
    return handle;
  }
  bool SetTtl(const DocumentHandle& handle, int64_t seconds) {
    const auto set = [&](DocumentAttributes* one) { one->ttl_us = seconds * 1'000'000; };
    return directory_.UpdateAttributes(handle, set).ok();
  }
  void Pass(int64_t seconds) { now_us_ += seconds * 1'000'000; }
  std::vector<std::string> Expired() const {
    std::vector<std::string> ids;
    for (const DocumentHandle& handle : directory_.Expired()) ids.push_back(handle.id);
    return ids;
  }

  int64_t now_us_ = 1'700'000'000'000'000;
  DocumentDirectory directory_{
      {.max_documents = 3, .max_tokens = 100, .now_us = [this] { return now_us_; }}};
};

TEST_F(DocumentDirectoryTest, ADocumentIsReadyOnceEveryTokenOfAFinishedUploadIsPrefilled) {
  const DocumentHandle document = Create("a");
  EXPECT_TRUE(directory_.AddTokens(document, 30).ok());
  EXPECT_EQ(directory_.SetProgress(document, {.prefilled_tokens = 30}), State::kUploading);
  EXPECT_TRUE(directory_.AddTokens(document, 10).ok());
  EXPECT_TRUE(directory_.FinishUpload(document).ok());
  EXPECT_EQ(StateOf(document), State::kPrefilling);
  EXPECT_EQ(directory_.SetProgress(document, {.prefilled_tokens = 39}), State::kPrefilling);
  DocumentDirectory::Progress progress = {.prefilled_tokens = 40,
                                          .device_kv_bytes = 1000,
                                          .host_kv_bytes = 400,
                                          .disk_kv_bytes = 300,
                                          .summary_bytes = 200};
  EXPECT_EQ(directory_.SetProgress(document, progress), State::kReady);
  EXPECT_EQ(directory_.Get(document)->device_kv_bytes, 1000);
  EXPECT_EQ(directory_.Get(document)->host_kv_bytes, 400);
  EXPECT_EQ(directory_.Get(document)->disk_kv_bytes, 300);
  EXPECT_EQ(directory_.Get(document)->summary_bytes, 200);
  // Another strategy's cache comes and goes.
  progress.device_kv_bytes = 1500;
  EXPECT_EQ(directory_.SetProgress(document, progress), State::kReady);
}

TEST_F(DocumentDirectoryTest, ProgressOfADocumentThatIsGoneOrHasFailedIsNobodys) {
  const DocumentHandle deleted = Create("a");
  EXPECT_TRUE(directory_.Remove(deleted).ok());
  const DocumentHandle next = Create("a");
  EXPECT_EQ(directory_.SetProgress(deleted, {.prefilled_tokens = 7}), std::nullopt);
  EXPECT_EQ(directory_.Get(next)->prefilled_tokens, 0);
  EXPECT_TRUE(directory_.Fail(next, absl::AbortedError("why")).ok());
  EXPECT_EQ(directory_.SetProgress(next, {.prefilled_tokens = 7}), std::nullopt);
  EXPECT_EQ(directory_.Get(next)->prefilled_tokens, 0);
}

TEST_F(DocumentDirectoryTest, AFailureKeepsItsFirstReasonAndFreesEverything) {
  const DocumentHandle document = Create("a");
  EXPECT_TRUE(directory_.AddTokens(document, 5).ok());
  directory_.SetProgress(document, {5, 1000, 300, 200});
  EXPECT_TRUE(directory_.Fail(document, absl::AbortedError("first")).ok());
  EXPECT_EQ(directory_.Fail(document, absl::AbortedError("second")).code(),
            absl::StatusCode::kFailedPrecondition);
  const DocumentInfo failed = *directory_.Get(document);
  EXPECT_EQ(failed.error, absl::AbortedError("first"));
  EXPECT_EQ(failed.device_kv_bytes + failed.summary_bytes + failed.prefilled_tokens, 0);
}

TEST_F(DocumentDirectoryTest, IncarnationsGrowUnderEveryId) {
  uint64_t last = 0;
  for (const char* id : {"a", "b", "a", "a", "b"}) {
    const auto old = directory_.Find(id);
    EXPECT_TRUE(!old.has_value() || directory_.Remove(old->handle).ok());
    const DocumentHandle document = Create(id);
    EXPECT_GT(document.incarnation, last);
    last = document.incarnation;
  }
}

TEST_F(DocumentDirectoryTest, LimitsAreKept) {
  const DocumentHandle a = Create("a");
  EXPECT_TRUE(directory_.AddTokens(a, 100).ok());
  EXPECT_EQ(directory_.AddTokens(a, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(directory_.Get(a)->known_tokens, 100);
  Create("b");
  Create("c");
  EXPECT_EQ(directory_.Create("d", {}, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(directory_.Create("a", {}, nullptr).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(DocumentDirectoryTest, DocumentsExpireAfterTheirLastUse) {
  using Ids = std::vector<std::string>;
  const DocumentHandle a = Ready("a", 100);
  const DocumentHandle b = Ready("b", 100);
  Ready("c", 0);
  Pass(60);
  EXPECT_EQ(Expired(), Ids{});
  directory_.Touch(a);
  Pass(60);
  EXPECT_EQ(Expired(), Ids{"b"});
  EXPECT_EQ(Expired(), Ids{"b"}) << "until somebody deletes it";
  EXPECT_TRUE(directory_.Remove(b).ok());
  EXPECT_EQ(Expired(), Ids{});
  Pass(39);
  EXPECT_EQ(Expired(), Ids{});
  Pass(1);
  EXPECT_EQ(Expired(), Ids{"a"});
  // To update it is to use it.
  EXPECT_TRUE(SetTtl(a, 100));
  EXPECT_EQ(Expired(), Ids{});
  EXPECT_TRUE(SetTtl(a, 0));
  Pass(1'000'000);
  EXPECT_EQ(Expired(), Ids{});
}

TEST_F(DocumentDirectoryTest, NeitherPinnedNorUnfinishedDocumentsExpire) {
  const DocumentHandle pinned = Ready("pinned", 10);
  const auto pin = [](bool on) { return [on](DocumentAttributes* one) { one->pinned = on; }; };
  EXPECT_TRUE(directory_.UpdateAttributes(pinned, pin(true)).ok());
  const DocumentHandle prefilling = Create("prefilling");
  EXPECT_TRUE(SetTtl(prefilling, 10));
  EXPECT_TRUE(directory_.AddTokens(prefilling, 1).ok());
  Pass(100);
  EXPECT_EQ(Expired(), std::vector<std::string>{});
  EXPECT_TRUE(directory_.FinishUpload(prefilling).ok());
  directory_.SetProgress(prefilling, {.prefilled_tokens = 1});
  EXPECT_TRUE(directory_.UpdateAttributes(pinned, pin(false)).ok());
  EXPECT_EQ(Expired(), std::vector<std::string>{}) << "their time begins now";
  Pass(10);
  EXPECT_EQ(Expired(), (std::vector<std::string>{"pinned", "prefilling"}));
}

TEST_F(DocumentDirectoryTest, UsesGoToDiskOftenEnoughForTheTtlAndNotMore) {
  const DocumentHandle a = Ready("a", 1600);
  EXPECT_FALSE(directory_.Touch(a)) << "it is not there";
  directory_.SetSaved(a, 5);
  int num_written = 0;
  for (int second = 0; second < 1600; ++second) {
    Pass(1);
    num_written += directory_.Touch(a) ? 1 : 0;
  }
  EXPECT_EQ(num_written, 16);
  const DocumentHandle b = Ready("b", 0);
  directory_.SetSaved(b, 5);
  Pass(1'000'000);
  EXPECT_FALSE(directory_.Touch(b)) << "it does not expire";
}

TEST_F(DocumentDirectoryTest, StoredDocumentsCountToTheLimitsOfTheirOwner) {
  DocumentDirectory::Stored stored;
  stored.handle = {"acme/book", 3};
  stored.whole = true;
  stored.stored_bytes = 100;
  directory_.AddStored(stored);
  const auto create = [&](const std::string& id, const Tenant& tenant) {
    return directory_.Create(id, {}, nullptr, {std::make_shared<const Tenant>(tenant)}).status();
  };
  const Tenant one{.name = "acme", .limits = {.max_documents = 1}};
  const Tenant bytes{.name = "acme", .limits = {.max_stored_bytes = 100}};
  EXPECT_TRUE(absl::IsResourceExhausted(create("acme/other", one)));
  EXPECT_TRUE(absl::IsResourceExhausted(create("acme/other", bytes)));
  EXPECT_TRUE(create("else/book", {.name = "else", .limits = {.max_documents = 1}}).ok());
  EXPECT_TRUE(directory_.Remove(stored.handle).ok());
  EXPECT_TRUE(create("acme/other", one).ok());
}

TEST(DocumentsOnDisk, ThoseOfATenantAreBoundedAsTheyGrowAndAreSaved) {
  DocumentDirectory directory({.stored_bytes_per_token = 8});
  const auto tenant = [](int64_t most) {
    return Payer{std::make_shared<const Tenant>(
        Tenant{.name = "acme", .limits = {.max_stored_bytes = most}})};
  };
  const DocumentHandle a = directory.Create("acme/a", {}, nullptr, tenant(1000))->handle;
  const DocumentHandle b = directory.Create("acme/b", {}, nullptr, tenant(1000))->handle;
  const DocumentHandle other = directory.Create("other", {}, nullptr, {})->handle;
  EXPECT_TRUE(directory.AddTokens(a, 50).ok());
  EXPECT_TRUE(directory.AddTokens(b, 75).ok());
  const absl::Status refused = directory.AddTokens(b, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.GetPayload(kLimitPayload), "tenant.stored_bytes");
  EXPECT_TRUE(directory.AddTokens(other, 1000).ok());
  EXPECT_EQ(directory.Get(b)->known_tokens, 75);
  // With the pages, which count from the order on until it is known what they take.
  EXPECT_FALSE(directory.BeginSaving(a, 401).ok());
  EXPECT_TRUE(directory.BeginSaving(a, 400).ok());
  EXPECT_TRUE(directory.AddTokens(a, 0).ok());
  directory.SetSavedPart(a, 50, absl::UnavailableError("the disk"));
  EXPECT_TRUE(directory.Remove(b).ok());
  EXPECT_TRUE(directory.BeginSaving(a, 1000).ok());
  directory.SetSaved(a, 900);
  const DocumentHandle c = directory.Create("acme/c", {}, nullptr, tenant(1000))->handle;
  EXPECT_FALSE(directory.BeginSaving(c, 101).ok());
  EXPECT_TRUE(directory.AddTokens(c, 12).ok());
  EXPECT_FALSE(directory.AddTokens(c, 1).ok());
  // Its limits are those of whoever opened it last.
  EXPECT_TRUE(directory.Open("acme/c", tenant(1100)).has_value());
  EXPECT_TRUE(directory.AddTokens(c, 1).ok());
  EXPECT_TRUE(directory.Open("acme/c", {}).has_value());
  EXPECT_FALSE(directory.AddTokens(c, 100).ok());
  EXPECT_FALSE(directory.Open("acme/d", tenant(1100)).has_value());
}

TEST_F(DocumentDirectoryTest, StoredDocumentsExpireLikeOthers) {
  DocumentDirectory::Stored stored;
  stored.handle = {"old", 7};
  stored.attributes.ttl_us = 50'000'000;
  stored.attributes.last_used_us = now_us_ - 20'000'000;
  directory_.AddStored(stored);
  Pass(29);
  EXPECT_EQ(Expired(), std::vector<std::string>{});
  Pass(1);
  EXPECT_EQ(Expired(), std::vector<std::string>{"old"});
}

TEST_F(DocumentDirectoryTest, StatesAreCounted) {
  const DocumentHandle a = Create("a");
  const DocumentHandle b = Create("b");
  Create("c");
  EXPECT_TRUE(directory_.AddTokens(a, 1).ok());
  EXPECT_TRUE(directory_.FinishUpload(a).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{2, 1, 0, 0}));
  directory_.SetProgress(a, {.prefilled_tokens = 1});
  EXPECT_TRUE(directory_.Fail(b, absl::AbortedError("x")).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{1, 0, 1, 1}));
  EXPECT_TRUE(directory_.Remove(a).ok());
  EXPECT_TRUE(directory_.Remove(b).ok());
  EXPECT_EQ(directory_.Count(), (DocumentCounts{1, 0, 0, 0}));
}

TEST(DocumentDirectoryTenants, HaveSoManyUnfinishedUploads) {
  DocumentDirectory directory({});
  const auto tenant = std::make_shared<const Tenant>(
      Tenant{.name = "acme", .limits = {.max_unfinished_uploads = 2}});
  const auto create = [&](const std::string& id) {
    return directory.Create(id, {}, nullptr, {tenant});
  };
  const DocumentHandle a = create("acme/a")->handle;
  const DocumentHandle b = create("acme/b")->handle;
  const absl::Status refused = create("acme/c").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.GetPayload(kLimitPayload), "tenant.unfinished_uploads");
  EXPECT_TRUE(directory.AddTokens(a, 1).ok());
  EXPECT_TRUE(directory.FinishUpload(a).ok());
  EXPECT_TRUE(create("acme/c").ok()) << "one has come to its end";
  EXPECT_FALSE(create("acme/d").ok());
  EXPECT_TRUE(directory.Fail(b, absl::AbortedError("x")).ok());
  const auto d = create("acme/d");
  EXPECT_TRUE(d.ok()) << "one has failed";
  EXPECT_FALSE(create("acme/e").ok());
  EXPECT_TRUE(directory.Remove(d->handle).ok());
  EXPECT_TRUE(create("acme/e").ok()) << "one is deleted";
}

TEST(DocumentDirectoryChanges, AreToldOnceTheyCanBeSeen) {
  std::vector<std::string> told;
  std::unique_ptr<DocumentDirectory> directory;
  DocumentLimits limits;
  limits.on_change = [&](const DocumentHandle& handle) {
    const auto info = directory->Get(handle);  // the mutex is free
    told.push_back(info.ok() ? DocumentStateName(info->state) : "gone");
  };
  directory = std::make_unique<DocumentDirectory>(limits);
  const DocumentHandle handle = directory->Create("d", {}, nullptr)->handle;
  EXPECT_TRUE(directory->AddTokens(handle, 5).ok());
  EXPECT_TRUE(directory->FinishUpload(handle).ok());
  directory->SetProgress(handle, {.prefilled_tokens = 5});
  directory->SetSaved(handle, int64_t{7});
  EXPECT_TRUE(directory->Remove(handle).ok());
  EXPECT_FALSE(directory->Remove(handle).ok());
  EXPECT_EQ(told, (std::vector<std::string>{"uploading", "prefilling", "ready", "ready", "gone"}));
}

TEST(DocumentDirectoryPins, HoldNoMoreThanTheirPart) {
  DocumentDirectory directory({.max_pinned_bytes = 100});
  const auto stored = [&](const std::string& id, int64_t num_bytes) {
    const DocumentHandle handle = directory.Create(id, {}, nullptr)->handle;
    EXPECT_TRUE(directory.AddTokens(handle, 1).ok());
    directory.SetSaved(handle, num_bytes);
    return handle;
  };
  const auto pin = [&](const DocumentHandle& handle, bool pinned) {
    return directory
        .UpdateAttributes(handle,
                          [&](DocumentAttributes* one) {
                            one->pinned = pinned;
                            one->labels["tried"] = "yes";
                          })
        .status();
  };
  const DocumentHandle a = stored("a", 60);
  const DocumentHandle b = stored("b", 41);
  const DocumentHandle c = stored("c", 40);
  EXPECT_TRUE(pin(a, true).ok());
  const absl::Status refused = pin(b, true);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(refused.message().find("--store-bytes"), std::string::npos) << refused;
  EXPECT_FALSE(directory.Get(b)->attributes.pinned);
  EXPECT_TRUE(directory.Get(b)->attributes.labels.empty()) << "all of it or nothing";
  EXPECT_TRUE(pin(c, true).ok());
  EXPECT_TRUE(pin(c, true).ok()) << "it is already";
  // One that grows; those that are not pinned may.
  EXPECT_TRUE(directory.BeginSaving(c, 40).ok());
  EXPECT_FALSE(directory.BeginSaving(c, 41).ok());
  EXPECT_TRUE(directory.BeginSaving(b, 1000).ok());
  EXPECT_TRUE(pin(a, false).ok());
  EXPECT_TRUE(pin(b, true).ok());
  EXPECT_TRUE(directory.Remove(c).ok());
  EXPECT_FALSE(pin(a, true).ok());
  EXPECT_TRUE(directory.Remove(b).ok());
  EXPECT_TRUE(pin(a, true).ok());
}

}  // namespace
}  // namespace folio
