#include "server/client_shares.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace folio::server {
namespace {

TEST(ClientShares, AClientHasNoMoreThanItsMost) {
  ClientShares shares;
  std::vector<ClientShares::Share> a;
  for (int n = 0; n < 3; ++n) a.push_back(shares.Join("a", 3));
  EXPECT_NE(a.back(), nullptr);
  EXPECT_EQ(shares.Join("a", 3), nullptr);
  ClientShares::Share b = shares.Join("b", 3);
  EXPECT_NE(b, nullptr);
  EXPECT_NE(b.get(), a[0].get());
  EXPECT_EQ(a[0].get(), a[1].get());
  EXPECT_EQ(shares.num_requests(), 4);
  a.pop_back();
  EXPECT_NE(shares.Join("a", 3), nullptr);
  EXPECT_EQ(shares.num_requests(), 3);
  b = std::move(a.back());
  a.clear();
  EXPECT_EQ(shares.num_requests(), 1);
  b.reset();
  EXPECT_EQ(shares.num_requests(), 0);
  EXPECT_EQ(shares.Join("a", 0), nullptr);
}

}  // namespace
}  // namespace folio::server
