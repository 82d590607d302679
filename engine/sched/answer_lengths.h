#pragma once

#include <cstdint>

#include "engine/types/request.h"

namespace folio {

// How long answers get, of the tokens that they may have: by those that ended lately. A plain
// value; not thread-safe.
class AnswerLengths {
 public:
  // An answer has ended after `had` tokens.
  void Note(const StopParams& stop, int64_t had);

  // Tokens that an answer is expected to have: of those that it may have the part that others had,
  // but no more than the longest one lately, as clients ask for many to be safe.
  double Expected(const StopParams& stop) const;

 private:
  double part_ = 1;
  double longest_ = 64;  // before any has ended, as nothing is known: a short one
};

}  // namespace folio
