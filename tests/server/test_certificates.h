#pragma once

#include <string>
#include <vector>

namespace folio::testing {

// A certificate and its private key, as PEM.
struct TestCertificate {
  std::string cert;
  std::string key;
};

// A root that signs itself.
TestCertificate MakeRoot(const std::string& common_name);

// Signed by `root`, for these alternative names as OpenSSL writes them: "DNS:localhost",
// "URI:spiffe://example/acme". None: for its common name alone. `days`: until it ends; below 0 it
// has ended.
TestCertificate MakeCertificate(const TestCertificate& root, const std::string& common_name,
                                const std::vector<std::string>& names, int days = 1);

}  // namespace folio::testing
