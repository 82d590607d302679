#include "server/options.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/server/parsed_options.h"

namespace folio::server {
namespace {

TEST(Options, DashesAndUnderscoresAreTheSame) {
  const Parsed parsed = Parse({"--model=/m_1", "--kv_bytes=1000", "--max-queued-requests", "5",
                               "--metrics_listen", "local_host:12", "--insecure", "--log_json"});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(parsed.options.engine.model_dir, "/m_1");
  EXPECT_EQ(parsed.options.engine.kv_bytes, 1000);
  EXPECT_EQ(parsed.options.engine.max_queued_requests, 5);
  EXPECT_EQ(parsed.options.metrics_listen, "local_host:12");
  EXPECT_TRUE(parsed.options.log_json);
}

TEST(Options, ACertificateComesWithItsKey) {
  const Parsed parsed = Parse({"--model=/m", "--tls-cert=c", "--tls-key=k", "--tls-client-ca=r"});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_TRUE(parsed.options.tls.enabled());
  EXPECT_EQ(parsed.options.tls.cert, "c");
  EXPECT_EQ(parsed.options.tls.key, "k");
  EXPECT_EQ(parsed.options.tls.client_ca, "r");
  EXPECT_FALSE(Parse({"--model=/m"}).options.tls.enabled());
  for (const char* alone : {"--tls-cert=c", "--tls-key=k", "--tls-client-ca=r"}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({"--model=/m", alone}).result, ParseResult::kExit) << alone;
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("--tls-"), std::string::npos);
  }
}

// What a command line is refused for; empty: it is not.
std::string Refusal(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "--model=/m");
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse(std::move(arguments));
  const std::string said = ::testing::internal::GetCapturedStderr();
  return parsed.result == ParseResult::kExit ? said : "";
}

TEST(Options, PortsThatOthersReachNeedTlsOrTokens) {
  EXPECT_EQ(Refusal({}), "") << "by default nobody else reaches it";
  for (const char* loopback : {"--listen=127.0.0.1:1", "--listen=localhost:1", "--listen=[::1]:1",
                               "--metrics-listen=127.9.9.9:1"}) {
    EXPECT_EQ(Refusal({loopback}), "") << loopback;
  }
  for (const char* open : {"0.0.0.0:1", ":1", "[::]:1", "10.0.0.1:1", "example.org:1",
                           "127.example.org:1", "localhost.example.org:1"}) {
    const std::string listen = std::string("--listen=") + open;
    const std::string metrics = std::string("--metrics-listen=") + open;
    EXPECT_NE(Refusal({listen.c_str()}).find(listen), std::string::npos);
    EXPECT_NE(Refusal({metrics.c_str()}).find(metrics), std::string::npos);
    EXPECT_EQ(Refusal({listen.c_str(), metrics.c_str(), "--insecure"}), "");
    EXPECT_EQ(Refusal({listen.c_str(), "--tls-cert=c", "--tls-key=k"}), "");
    EXPECT_EQ(Refusal({listen.c_str(), "--tenants=t"}), "");
    EXPECT_NE(Refusal({metrics.c_str(), "--tls-cert=c", "--tls-key=k", "--tenants=t"}), "");
    EXPECT_EQ(Refusal({metrics.c_str(), "--tls-cert=c", "--tls-key=k", "--metrics-tls"}), "");
    EXPECT_EQ(Refusal({metrics.c_str(), "--tenants=t", "--metrics-tokens"}), "");
  }
}

TEST(Options, WhatOnePortNeedsOfTheOtherIsNamed) {
  EXPECT_NE(Refusal({"--metrics-tls"}).find("--metrics-tls needs --tls-cert"), std::string::npos);
  EXPECT_NE(Refusal({"--otlp-ca=c"}).find("--otlp-ca needs --otlp-endpoint"), std::string::npos);
  EXPECT_EQ(Refusal({"--otlp-ca=c", "--otlp-endpoint=collector:4317"}), "");
  EXPECT_NE(Refusal({"--metrics-tokens"}).find("needs --tenants"), std::string::npos);
  // Wherever each of them is set.
  const Variable key("FOLIO_TLS_KEY", "k");
  EXPECT_NE(Refusal({}), "");
  EXPECT_EQ(Refusal({"--tls-cert=c"}), "");
}

TEST(Options, SizesTakeUnits) {
  const std::vector<std::pair<const char*, int64_t>> sizes = {{"--kv-bytes=0", 0},
                                                              {"--kv-bytes=12345", 12345},
                                                              {"--kv-bytes=8GiB", int64_t{8} << 30},
                                                              {"--kv-bytes=8gib", int64_t{8} << 30},
                                                              {"--kv-bytes=512 MiB", 512 << 20},
                                                              {"--kv-bytes=3KB", 3000},
                                                              {"--kv-device-bytes=3KiB", 3072}};
  for (const auto& [flag, bytes] : sizes) {
    EXPECT_EQ(Parse({"--model=/m", flag}).options.engine.kv_bytes, bytes) << flag;
  }
  EXPECT_EQ(Parse({"--model=/m", "--max-document-bytes=64MiB"}).options.max_document_bytes,
            64 << 20);
}

TEST(Options, AddressesArePassedOn) {
  for (const char* address : {"0.0.0.0:0", "localhost:65535", "[::1]:50051", ":9090"}) {
    const Parsed parsed =
        Parse({"--model=/m", "--insecure", "--listen", address, "--metrics-listen", address});
    EXPECT_EQ(parsed.result, ParseResult::kRun);
    EXPECT_EQ(parsed.options.listen, address);
    EXPECT_EQ(parsed.options.metrics_listen, address);
  }
  EXPECT_EQ(Parse({"--model=/m", "--metrics-listen=off"}).options.metrics_listen, "off");
}

TEST(Options, HelpAndVersionExitWithZero) {
  for (const char* flag : {"--help", "--version"}) {
    ::testing::internal::CaptureStdout();
    const Parsed parsed = Parse({flag});
    EXPECT_FALSE(::testing::internal::GetCapturedStdout().empty());
    EXPECT_EQ(parsed.result, ParseResult::kExit);
    EXPECT_EQ(parsed.exit_code, 0);
  }
}

TEST(Options, ABadFlagIsOneLineAndExitsWithOne) {
  const std::vector<std::vector<const char*>> bad = {{},
                                                     {"--model=/m", "--no-such-flag"},
                                                     {"--model=/m", "--threads=many"},
                                                     {"--model=/m", "--threads=-1"},
                                                     {"--model=/m", "--kv-dtype=fp64"},
                                                     {"--model=/m", "--max-queued-requests=0"},
                                                     {"--model=/m", "--kv-bytes=8GiBs"},
                                                     {"--model=/m", "--kv-bytes=-1"},
                                                     {"--model=/m", "--kv-bytes=99999999EiB"},
                                                     {"--model=/m", "--max-document-bytes=0"},
                                                     {"--model=/m", "--listen=localhost:70000"},
                                                     {"--model=/m", "--listen=localhost"},
                                                     {"--model=/m", "--listen=off"},
                                                     {"--model=/m", "--listen=localhost:-1"},
                                                     {"--model=/m", "--listen=::1:50051"},
                                                     {"--model=/m", "--metrics-listen=x:70000"},
                                                     {"--model=/m", "--metrics-listen=on"},
                                                     {"--model=/m", "--log-level=loud"}};
  for (const auto& arguments : bad) {
    ::testing::internal::CaptureStderr();
    const Parsed parsed = Parse(arguments);
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(parsed.result, ParseResult::kExit);
    EXPECT_EQ(parsed.exit_code, 1);
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
    EXPECT_EQ(error.rfind("folio-server: ", 0), 0u) << error;
  }
}

}  // namespace
}  // namespace folio::server
