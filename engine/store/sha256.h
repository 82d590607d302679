#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/store/content_key.h"

struct evp_md_ctx_st;

namespace folio {

// SHA-256 of a list of fields. Each goes in with its length in front of it: other fields never make
// the same input. One thread.
class Sha256 {
 public:
  // `purpose` keeps hashes apart that are made of the same fields for something else.
  explicit Sha256(std::string_view purpose);

  void Add(std::string_view bytes);
  void Add(uint64_t number);
  void Add(const ContentKey& key);
  // Once, at the end.
  ContentKey Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace folio
