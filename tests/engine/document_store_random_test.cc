// Random operations on a store, against a plain map: without faults, with power cuts at any moment,
// and with each operation of the file system failing in turn.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/engine/memory_files.h"
#include "tests/engine/random_owner.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

using test::MemoryFiles;
using test::RandomOwner;
using test::TestSeed;

TEST(DocumentStoreRandom, EqualsAPlainMap) {
  const test::SaysTestSeed trace;
  MemoryFiles files;
  RandomOwner owner(&files, TestSeed() + 1);
  ASSERT_TRUE(owner.Open().ok());
  for (int step = 1; step <= 6000; ++step) {
    owner.Step();
    if (step % 10 == 0) {
      ASSERT_EQ(owner.Check(), "") << step;
    }
    if (step % 100 == 0) {
      ASSERT_TRUE(owner.Open().ok());
      ASSERT_EQ(owner.Check(), "") << step;
      ASSERT_EQ(owner.CheckDisk(), "") << step;
    }
  }
  EXPECT_EQ(owner.num_errors(), 0);
}

// The power goes at a random operation, which does not happen, nor does anything after it. What was
// not synced is there or not. Then the same again with what is left.
TEST(DocumentStoreRandom, WhatWasReportedDurableSurvivesAPowerCut) {
  const test::SaysTestSeed trace;
  int64_t num_cuts = 0;
  int64_t num_kept = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    MemoryFiles files;
    std::mt19937_64 random(TestSeed() * 1000 + seed);
    RandomOwner owner(&files, random());
    for (int round = 0; round < 4; ++round) {
      int64_t left = static_cast<int64_t>(random() % 400);
      files.set_fault([&left](const std::string&, const std::string&) {
        return --left >= 0 ? absl::OkStatus() : absl::UnavailableError("no power");
      });
      if (owner.Open().ok()) {
        for (int step = 0; step < 300 && left >= 0; ++step) owner.Step();
      }
      owner.Die();
      files.LosePower(random() % 4 == 0 ? nullptr : &random);
      files.set_fault({});
      ASSERT_TRUE(owner.Open().ok()) << seed;
      ASSERT_EQ(owner.Check(), "") << seed << ", round " << round;
      ASSERT_EQ(owner.CheckDisk(), "") << seed << ", round " << round;
      ++num_cuts;
      num_kept += static_cast<int64_t>(owner.num_documents());
    }
  }
  EXPECT_EQ(num_cuts, 1600);
  EXPECT_GT(num_kept, num_cuts);  // the test is about something
}

// Each operation of the file system fails once in turn, as disks do.
TEST(DocumentStoreRandom, GoesOnAfterAnyErrorOfTheDisk) {
  const test::SaysTestSeed trace;
  const absl::Status errors[] = {absl::ResourceExhaustedError("ENOSPC"),
                                 absl::UnavailableError("EIO"),
                                 absl::PermissionDeniedError("EROFS")};
  constexpr int kSteps = 80;
  for (const absl::Status& error : errors) {
    int64_t num_errors = 0;
    int64_t num_operations = 1;
    for (int64_t failing = 0; failing < num_operations; ++failing) {
      MemoryFiles files;
      RandomOwner owner(&files, TestSeed() + static_cast<uint64_t>(error.code()));
      files.set_fault([&](const std::string&, const std::string&) {
        return files.num_operations() == failing ? error : absl::OkStatus();
      });
      if (!owner.Open().ok()) {
        ASSERT_TRUE(owner.Open().ok()) << failing;
      }
      for (int step = 0; step < kSteps; ++step) owner.Step();
      num_operations = failing == 0 ? files.num_operations() : num_operations;
      num_errors += owner.num_errors();
      ASSERT_EQ(owner.Check(), "") << error << failing;
      files.set_fault({});
      ASSERT_TRUE(owner.Open().ok()) << failing;
      ASSERT_EQ(owner.Check(), "") << error << failing;
      ASSERT_EQ(owner.CheckDisk(), "") << error << failing;
    }
    EXPECT_GT(num_operations, 150);
    EXPECT_GT(num_errors, num_operations / 4);
  }
}

}  // namespace
}  // namespace folio
