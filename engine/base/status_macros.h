#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define FOLIO_CONCAT_INNER(a, b) a##b
#define FOLIO_CONCAT(a, b) FOLIO_CONCAT_INNER(a, b)

// Returns from the enclosing function if `expr` is not OK.
#define FOLIO_RETURN_IF_ERROR(expr)                               \
  do {                                                            \
    if (absl::Status folio_status = (expr); !folio_status.ok()) { \
      return folio_status;                                        \
    }                                                             \
  } while (false)

// `lhs` = value of `expr`, or returns its status from the enclosing function.
#define FOLIO_ASSIGN_OR_RETURN(lhs, expr) \
  FOLIO_ASSIGN_OR_RETURN_IMPL(FOLIO_CONCAT(folio_statusor_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): tmp is a name, lhs a declaration.
#define FOLIO_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) {                                  \
    return tmp.status();                            \
  }                                                 \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
