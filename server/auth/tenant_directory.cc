#include "server/auth/tenant_directory.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxTenants = 1024;
// All of them are compared with each token that a call shows.
constexpr size_t kMaxTokens = 4096;
constexpr size_t kMaxNameBytes = 64;
constexpr int kMaxPriority = 100;
// More than any server does, and exact as a double.
constexpr int64_t kMaxPerMinute = int64_t{1} << 50;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}

}  // namespace

class TenantParser {
 public:
  absl::StatusOr<std::shared_ptr<const TenantDirectory>> Parse(const Json& file) {
    if (!file.is_object() || !file.contains("tenants") || !file["tenants"].is_object()) {
      return absl::InvalidArgumentError(R"(it is no JSON object with "tenants")");
    }
    for (const auto& [key, value] : file.items()) {
      if (key != "tenants") return absl::InvalidArgumentError("unknown key " + Quoted(key));
    }
    if (file["tenants"].size() > kMaxTenants) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kMaxTenants, " tenants"));
    }
    for (const auto& [name, tenant] : file["tenants"].items()) {
      const absl::Status added = Add(name, tenant);
      if (!added.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tenant ", Quoted(name), ": ", added.message()));
      }
    }
    return std::move(directory_);
  }

 private:
  absl::Status Add(const std::string& name, const Json& json) {
    if (!IsName(name)) {
      return absl::InvalidArgumentError("its name must be 1 to 64 characters of [A-Za-z0-9_.-]");
    }
    if (!json.is_object()) return absl::InvalidArgumentError("it is no object");
    KnownTenant& known = directory_->tenants_[name];
    Tenant tenant{.name = name};
    for (const auto& [key, value] : json.items()) {
      const absl::Status read = ReadKey(key, value, &tenant, &known);
      if (!read.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(Quoted(key), " ", read.message()));
      }
    }
    known.tenant = std::make_shared<const Tenant>(std::move(tenant));
    return absl::OkStatus();
  }

  absl::Status ReadKey(const std::string& key, const Json& value, Tenant* tenant,
                       KnownTenant* known) {
    TenantLimits* limits = &tenant->limits;
    if (key == "token_sha256") return ReadTokens(value, known);
    if (key == "certificates") return ReadCertificates(value, known);
    if (key == "admin") return ReadFlag(value, &known->is_admin);
    if (key == "metrics") return ReadFlag(value, &known->reads_metrics);
    if (key == "weight") return ReadWeight(value, &tenant->weight);
    if (key == "priority") return ReadCount(value, -kMaxPriority, kMaxPriority, &tenant->priority);
    if (key == "max_queued_requests") return ReadLimit(value, &limits->max_queued_requests);
    if (key == "max_running_requests") return ReadLimit(value, &limits->max_running_requests);
    if (key == "max_queued_prefill_tokens") {
      return ReadLimit(value, &limits->max_queued_prefill_tokens);
    }
    if (key == "max_kv_bytes") return ReadLimit(value, &limits->max_kv_bytes);
    if (key == "max_documents") return ReadLimit(value, &limits->max_documents);
    if (key == "max_unfinished_uploads") return ReadLimit(value, &limits->max_unfinished_uploads);
    if (key == "max_stored_bytes") return ReadLimit(value, &limits->max_stored_bytes);
    return ReadCallLimit(key, value, &known->calls);
  }

  static absl::Status ReadCallLimit(const std::string& key, const Json& value, CallLimits* calls) {
    if (key == "max_open_calls") return ReadLimit(value, &calls->max_open_calls);
    if (key == "max_connections") return ReadLimit(value, &calls->max_connections);
    if (key == "max_request_memory_bytes") {
      return ReadLimit(value, &calls->max_request_memory_bytes);
    }
    if (key == "requests_per_minute") return ReadRate(value, &calls->requests_per_minute);
    if (key == "tokens_per_minute") return ReadRate(value, &calls->tokens_per_minute);
    return absl::InvalidArgumentError("is no key of a tenant");
  }

  static absl::Status ReadFlag(const Json& value, bool* flag) {
    if (!value.is_boolean()) return absl::InvalidArgumentError("must be true or false");
    *flag = value.get<bool>();
    return absl::OkStatus();
  }

  absl::Status ReadTokens(const Json& value, const KnownTenant* known) {
    if (!value.is_array()) return absl::InvalidArgumentError("must be a list of SHA-256 in hex");
    for (const Json& one : value) {
      const std::string hex = one.is_string() ? one.get<std::string>() : "";
      TenantDirectory::Token token{.hash = {}, .tenant = known};
      if (hex.size() != 2 * token.hash.size() ||
          !std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c); })) {
        return absl::InvalidArgumentError("must be a list of SHA-256 in 64 hexadecimal digits");
      }
      const std::string bytes = absl::HexStringToBytes(hex);
      std::copy(bytes.begin(), bytes.end(), token.hash.begin());
      for (const TenantDirectory::Token& other : directory_->tokens_) {
        if (other.hash == token.hash) {
          return absl::InvalidArgumentError("has a token that was there before");
        }
      }
      directory_->tokens_.push_back(token);
    }
    if (directory_->tokens_.size() <= kMaxTokens) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("is one of more than ", kMaxTokens, " tokens"));
  }

  absl::Status ReadCertificates(const Json& value, const KnownTenant* known) {
    if (!value.is_array()) return absl::InvalidArgumentError("must be a list of names");
    for (const Json& one : value) {
      if (!one.is_string() || one.get<std::string>().empty()) {
        return absl::InvalidArgumentError("must be a list of names");
      }
      if (!directory_->certificates_.emplace(one.get<std::string>(), known).second) {
        return absl::InvalidArgumentError("has a name that was there before");
      }
    }
    return absl::OkStatus();
  }

  static absl::Status ReadWeight(const Json& value, double* weight) {
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!(number >= 0.001 && number <= 1000)) {
      return absl::InvalidArgumentError("must be a number in [0.001, 1000]");
    }
    *weight = number;
    return absl::OkStatus();
  }

  template <typename Number>
  static absl::Status ReadLimit(const Json& value, Number* to) {
    return ReadCount(value, 0, std::numeric_limits<Number>::max(), to);
  }

  static absl::Status ReadRate(const Json& value, int64_t* per_minute) {
    return ReadCount(value, 0, kMaxPerMinute, per_minute);
  }

  template <typename Number>
  static absl::Status ReadCount(const Json& value, int64_t least, int64_t most, Number* to) {
    const bool whole = value.is_number_integer() &&
                       (!value.is_number_unsigned() ||
                        value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
    if (!whole || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be a whole number in [", least, ", ", most, "]"));
    }
    *to = static_cast<Number>(value.get<int64_t>());
    return absl::OkStatus();
  }

  std::shared_ptr<TenantDirectory> directory_ = std::make_shared<TenantDirectory>();
};

absl::StatusOr<std::shared_ptr<const TenantDirectory>> TenantDirectory::Parse(
    const std::string& json) {
  const Json file = Json::parse(json, /*cb=*/nullptr, /*allow_exceptions=*/false,
                                /*ignore_comments=*/true);
  if (file.is_discarded()) return absl::InvalidArgumentError("it is no JSON");
  return TenantParser().Parse(file);
}

absl::StatusOr<std::shared_ptr<const TenantDirectory>> TenantDirectory::Read(
    const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (!(text << stream.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("--tenants ", path, " cannot be read"));
  }
  auto parsed = Parse(text.str());
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(
      absl::StrCat("--tenants ", path, ": ", parsed.status().message()));
}

const KnownTenant* TenantDirectory::OfToken(std::string_view token) const {
  Hash hash;
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), hash.data());
  const KnownTenant* found = nullptr;
  for (const Token& one : tokens_) {
    if (CRYPTO_memcmp(one.hash.data(), hash.data(), hash.size()) == 0) found = one.tenant;
  }
  return found;
}

const KnownTenant* TenantDirectory::OfCertificate(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    const auto found = certificates_.find(name);
    if (found != certificates_.end()) return found->second;
  }
  return nullptr;
}

const KnownTenant* TenantDirectory::Named(const std::string& name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

std::set<std::string> TenantDirectory::names() const {
  std::set<std::string> names;
  for (const auto& [name, tenant] : tenants_) names.insert(name);
  return names;
}

}  // namespace folio::server
