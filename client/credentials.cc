#include "client/credentials.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace folio::client {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (path.empty() || !(text << stream.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  return std::move(text).str();
}

class AddToken final : public Interceptor {
 public:
  explicit AddToken(const std::string& path) : path_(path) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      // Without the token the server says what is missing.
      if (const auto token = ReadFile(path_); token.ok()) {
        methods->GetSendInitialMetadata()->emplace(
            "authorization",
            absl::StrCat("Bearer ", std::string(absl::StripAsciiWhitespace(token->c_str()))));
      }
    }
    methods->Proceed();
  }

 private:
  const std::string path_;
};

class AddTokens final : public ClientInterceptorFactoryInterface {
 public:
  explicit AddTokens(std::string path) : path_(std::move(path)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new AddToken(path_); }

 private:
  const std::string path_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(
    const Credentials& credentials) {
  const bool tls = credentials.tls || !credentials.ca_file.empty() ||
                   !credentials.cert_file.empty() || !credentials.key_file.empty();
  if (!tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  const std::pair<const std::string*, std::string*> files[] = {
      {&credentials.ca_file, &options.pem_root_certs},
      {&credentials.cert_file, &options.pem_cert_chain},
      {&credentials.key_file, &options.pem_private_key}};
  for (const auto& [path, to] : files) {
    if (path->empty()) continue;
    auto text = ReadFile(*path);
    if (!text.ok()) return text.status();
    *to = *std::move(text);
  }
  if (options.pem_cert_chain.empty() != options.pem_private_key.empty()) {
    return absl::InvalidArgumentError(
        "a certificate to show needs its key, and a key its certificate");
  }
  return grpc::SslCredentials(options);
}

std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> TokenInterceptors(
    const Credentials& credentials) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  if (!credentials.token_file.empty()) {
    interceptors.push_back(std::make_unique<AddTokens>(credentials.token_file));
  }
  return interceptors;
}

}  // namespace folio::client
