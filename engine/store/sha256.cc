#include "engine/store/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <bit>
#include <new>

namespace folio {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are hashed as they lie");

// OpenSSL fails here for lack of memory only.
void Check(int done) {
  if (done != 1) throw std::bad_alloc();
}

// A thread that a disk holds may go on while the process ends: what it uses stays until then.
EVP_MD_CTX* NewContext() {
  static const int kept = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  Check(kept);
  return EVP_MD_CTX_new();
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256(std::string_view purpose) : context_(NewContext()) {
  Check(context_ != nullptr ? EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) : 0);
  Add(purpose);
}

void Sha256::Add(std::string_view bytes) {
  Add(uint64_t{bytes.size()});
  Check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

void Sha256::Add(uint64_t number) {
  Check(EVP_DigestUpdate(context_.get(), &number, sizeof(number)));
}

void Sha256::Add(const ContentKey& key) {
  Add(std::string_view(reinterpret_cast<const char*>(key.data()), key.size()));
}

ContentKey Sha256::Finish() {
  ContentKey key;
  Check(EVP_DigestFinal_ex(context_.get(), key.data(), nullptr));
  return key;
}

}  // namespace folio
