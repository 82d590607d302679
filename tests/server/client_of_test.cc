#include "server/client_of.h"

#include <gtest/gtest.h>

namespace folio::server {
namespace {

TEST(ClientOf, IsTheAddressWithoutPort) {
  EXPECT_EQ(ClientOf("ipv4:10.1.2.3:4567"), "10.1.2.3");
  EXPECT_EQ(ClientOf("ipv6:%5B2001:db8::1%5D:4567"), "[2001:db8::1]");
  EXPECT_EQ(ClientOf("unix-abstract:10.1.2.3:4567%2312.34"), "10.1.2.3");
  EXPECT_EQ(ClientOf("unix-abstract:2001:db8::1:4567#12.34"), "2001:db8::1");
}

TEST(ClientOf, TakesWhateverGrpcSays) {
  for (const char* peer : {"", ":", "%", "%2", "%zz", "inproc", "unix:", "ipv4:", "#", "::::"}) {
    ClientOf(peer);
  }
  EXPECT_EQ(ClientOf("ipv4:%41%zz%4"), "A%zz%4");
}

}  // namespace
}  // namespace folio::server
