#include "tests/server/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <functional>
#include <memory>

#include "absl/strings/str_join.h"

namespace folio::testing {
namespace {

using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

std::string Pem(const std::function<void(BIO*)>& write) {
  BIO* const memory = BIO_new(BIO_s_mem());
  write(memory);
  char* text = nullptr;
  const long size = BIO_get_mem_data(memory, &text);
  std::string pem(text, static_cast<size_t>(size));
  BIO_free(memory);
  return pem;
}

Key KeyOf(const std::string& pem) {
  BIO* const memory = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  Key key(PEM_read_bio_PrivateKey(memory, nullptr, nullptr, nullptr), EVP_PKEY_free);
  BIO_free(memory);
  return key;
}

Certificate CertificateOf(const std::string& pem) {
  BIO* const memory = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  Certificate certificate(PEM_read_bio_X509(memory, nullptr, nullptr, nullptr), X509_free);
  BIO_free(memory);
  return certificate;
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// `root` null: it signs itself.
TestCertificate Make(const TestCertificate* root, const std::string& common_name,
                     const std::vector<std::string>& names, int days) {
  static long serial = 1;
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -10L * 86400);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), days * 86400L);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  const Certificate issuer = CertificateOf(root == nullptr ? "" : root->cert);
  X509_set_issuer_name(certificate.get(),
                       root == nullptr ? subject : X509_get_subject_name(issuer.get()));
  if (root == nullptr) AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  if (!names.empty()) {
    AddExtension(certificate.get(), NID_subject_alt_name, absl::StrJoin(names, ","));
  }
  const Key signer = KeyOf(root == nullptr ? "" : root->key);
  X509_sign(certificate.get(), root == nullptr ? key.get() : signer.get(), EVP_sha256());
  return {Pem([&](BIO* to) { PEM_write_bio_X509(to, certificate.get()); }), Pem([&](BIO* to) {
            PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace

TestCertificate MakeRoot(const std::string& common_name) {
  return Make(nullptr, common_name, {}, 1);
}

TestCertificate MakeCertificate(const TestCertificate& root, const std::string& common_name,
                                const std::vector<std::string>& names, int days) {
  return Make(&root, common_name, names, days);
}

}  // namespace folio::testing
