#pragma once

#include <cstdint>
#include <optional>

namespace folio {

// How long some amount of work takes, as measured: of the last seconds of such work.
class MeasuredRate {
 public:
  void Add(int64_t amount, double seconds);
  // nullopt: too little was measured to tell.
  std::optional<double> SecondsFor(int64_t amount) const;

 private:
  double amount_ = 0;
  double seconds_ = 0;
};

// How the cache of a stored document comes into memory for a question: read from disk, or computed
// again from its tokens where that takes less time until the first token, by measured rates. Plain
// data, no thread of its own.
class RestoreChoice {
 public:
  // Bytes that came from disk, verified, and how long somebody has waited for them.
  void NoteRead(int64_t bytes, double seconds) { reads_.Add(bytes, seconds); }
  // Tokens of documents that were prefilled.
  void NotePrefill(int64_t tokens, double seconds) { prefills_.Add(tokens, seconds); }

  struct Work {
    int64_t read_bytes = 0;      // until the first token, if the cache is read
    int64_t prefill_tokens = 0;  // if it is not
  };
  // Decides and counts. Reads where a rate is not known yet, and now and then though prefilling
  // seems faster: else a disk that was slow once would never be measured again.
  bool ShouldPrefill(const Work& work);

  int64_t num_read() const { return num_read_; }
  int64_t num_prefilled() const { return num_prefilled_; }

 private:
  MeasuredRate reads_;
  MeasuredRate prefills_;
  int prefilled_since_read_ = 0;
  int64_t num_read_ = 0;
  int64_t num_prefilled_ = 0;
};

}  // namespace folio
