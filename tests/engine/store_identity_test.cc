// What names models, texts and documents on disk.

#include <gtest/gtest.h>

#include <set>

#include "engine/store/content_key.h"
#include "engine/store/document_id.h"
#include "engine/store/fingerprint.h"
#include "engine/store/sha256.h"

namespace folio {
namespace {

TEST(Sha256, IsOfFieldsAndNotOfTheirSum) {
  const auto of = [](std::initializer_list<std::string_view> fields) {
    Sha256 hash("test");
    for (const std::string_view field : fields) hash.Add(field);
    return HexOf(hash.Finish());
  };
  // printf '\4\0\0\0\0\0\0\0test\2\0\0\0\0\0\0\0ab' | sha256sum
  EXPECT_EQ(of({"ab"}), "c0549f868f1980963ac9738d2b398a90637e7aa2c2b8172aa5fbc52211cb1e98");
  EXPECT_EQ(of({"a", "b"}), of({"a", "b"}));
  EXPECT_NE(of({"a", "b"}), of({"ab"}));
  EXPECT_NE(of({"a", "b"}), of({"b", "a"}));
  EXPECT_NE(of({"", "ab"}), of({"ab", ""}));
}

TEST(Fingerprint, OfATokenizerIsOfItsFilesInAnyOrder) {
  const ModelFile a = {"tokenizer.json", "{}"};
  const ModelFile b = {"tokenizer_config.json", "{ }"};
  EXPECT_EQ(TokenizerFingerprint({a, b}), TokenizerFingerprint({b, a}));
  EXPECT_NE(TokenizerFingerprint({a, b}), TokenizerFingerprint({a}));
  EXPECT_NE(TokenizerFingerprint({a}), TokenizerFingerprint({{"tokenizer.json", "{ }"}}));
  EXPECT_NE(TokenizerFingerprint({a}), TokenizerFingerprint({{"tokenizer.model", "{}"}}));
}

// Two tensors and everything else; each can be changed alone.
struct Model {
  std::string config = "{\"rope_theta\": 10000}";
  Fingerprint tokenizer = {1};
  std::vector<float> a = {1, 2, 3, 4, 5, 6};
  std::vector<float> b = {7, 8};
  std::string name_of_b = "b";
  std::array<int64_t, 4> shape_of_a = {2, 3};
  DType dtype_of_b = DType::kF32;
  int page_tokens = 64;
  std::string kv_dtype = "bf16";
  std::string weights = "bf16";

  Fingerprint Make(bool b_first = false) const {
    TensorDigests tensors;
    const auto add_b = [&] { tensors.Add(name_of_b, {b.data(), dtype_of_b, 1, {2}}); };
    if (b_first) add_b();
    tensors.Add("a", {a.data(), DType::kF32, 2, shape_of_a});
    add_b();
    EXPECT_EQ(tensors.num_tensors(), 2);
    return ModelContent{config, tokenizer, tensors, page_tokens, kv_dtype, weights}
        .MakeFingerprint();
  }
};

TEST(Fingerprint, OfAModelDoesNotDependOnTheOrderOfItsTensors) {
  EXPECT_EQ(Model().Make(), Model().Make());
  EXPECT_EQ(Model().Make(), Model().Make(true));
}

TEST(Fingerprint, OfAModelChangesWithEverythingThatKvDependsOn) {
  std::set<Fingerprint> all = {Model().Make()};
  size_t expected = 1;
  const auto differs = [&](const Model& model) {
    all.insert(model.Make());
    return all.size() == ++expected;
  };
  EXPECT_TRUE(differs({.config = "{\"rope_theta\": 500000}"}));
  EXPECT_TRUE(differs({.tokenizer = {2}}));
  EXPECT_TRUE(differs({.a = {1, 2, 3, 4, 5, 6.0000005f}}));
  EXPECT_TRUE(differs({.b = {8, 7}}));
  EXPECT_TRUE(differs({.name_of_b = "c"}));
  EXPECT_TRUE(differs({.shape_of_a = {3, 2}}));
  EXPECT_TRUE(differs({.dtype_of_b = DType::kI32}));
  EXPECT_TRUE(differs({.page_tokens = 16}));
  EXPECT_TRUE(differs({.kv_dtype = "fp32"}));
  EXPECT_TRUE(differs({.weights = "int8/32"}));
}

TEST(ContentKey, IsChainedOverTheText) {
  const std::vector<int32_t> first = {1, 2, 3};
  const std::vector<int32_t> second = {4, 5};
  const ContentKey start = FirstKey({1}, "full", "");
  const ContentKey one = NextKey(start, first);
  EXPECT_EQ(NextKey(start, first), one);
  EXPECT_EQ(NextKey(one, second), NextKey(NextKey(start, first), second));
  // Other tokens before, the same here.
  EXPECT_NE(NextKey(one, second), NextKey(NextKey(start, second), second));
  EXPECT_NE(NextKey(start, first), NextKey(start, second));
}

TEST(ContentKey, DependsOnModelAttentionAndSalt) {
  const std::set<ContentKey> keys = {FirstKey({1}, "full", ""), FirstKey({2}, "full", ""),
                                     FirstKey({1}, "full ", ""), FirstKey({1}, "", "full"),
                                     FirstKey({1}, "full", "tenant")};
  EXPECT_EQ(keys.size(), 5u);
}

TEST(DocumentId, BecomesASafeNameOfItsOwn) {
  EXPECT_EQ(DirectoryNameOf("report-2024_x"), "report-2024_x");
  EXPECT_EQ(DirectoryNameOf("Report"), "%52eport");
  EXPECT_EQ(DirectoryNameOf("../../etc/passwd"), "%2E%2E%2F%2E%2E%2Fetc%2Fpasswd");
  EXPECT_EQ(DirectoryNameOf("a%2F"), "a%252%46");
  EXPECT_EQ(DirectoryNameOf("é"), "%C3%A9");
  std::set<std::string> names;
  const std::vector<std::string> ids = {".",
                                        "..",
                                        "a/b",
                                        "a\\b",
                                        "A",
                                        "a",
                                        "%h",
                                        "CON",
                                        " ",
                                        std::string(64, 'a'),
                                        std::string(200, 'a'),
                                        std::string(201, 'a'),
                                        std::string(200, 'A')};
  for (const std::string& id : ids) {
    const std::string name = DirectoryNameOf(id);
    EXPECT_TRUE(names.insert(name).second) << id;
    EXPECT_LE(name.size(), 128u);
    EXPECT_EQ(name.find_first_of("./\\"), name.npos);
  }
}

TEST(DocumentId, IsPrintableAndNotTooLong) {
  const auto refused = absl::StatusCode::kInvalidArgument;
  for (const std::string& id : {std::string(), std::string("a\nb"), std::string(1, '\0'),
                                std::string("\x7f"), std::string(1025, 'a')}) {
    EXPECT_EQ(CheckDocumentId(id).code(), refused);
  }
  EXPECT_TRUE(CheckDocumentId(std::string(1024, 'a')).ok());
  EXPECT_TRUE(CheckDocumentId("日本語 / ..").ok());
}

}  // namespace
}  // namespace folio
