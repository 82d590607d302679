#include "engine/grammar/string_pattern.h"

#include <cctype>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr size_t kMaxPatternBytes = 32 << 10;  // rewritten
constexpr int kMaxRepeats = 1000;
constexpr int kMaxDepth = 32;
// What a JSON string has in escapes only, as part of a negated class.
constexpr char kEscaped[] = R"("\\\x00-\x1f)";

class Rewriter {
 public:
  explicit Rewriter(std::string_view text) : text_(text) {
    if (text_.starts_with('^')) text_.remove_prefix(1);
    const bool ends = text_.ends_with('$') && !text_.ends_with("\\$");
    if (ends) text_.remove_suffix(1);
  }

  absl::StatusOr<std::string> Run() {
    FOLIO_ASSIGN_OR_RETURN(std::string out, Alternatives());
    if (!AtEnd()) return Bad("has a ) without its (");
    return out;
  }

 private:
  struct Atom {
    std::string text;
    bool is_single = false;  // a character or class
  };

  bool AtEnd() const { return at_ == text_.size(); }
  char Next() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (Next() != c || AtEnd()) return false;
    ++at_;
    return true;
  }
  static absl::Status Bad(const char* what) { return absl::InvalidArgumentError(what); }

  absl::StatusOr<std::string> Alternatives() {
    if (++depth_ > kMaxDepth) return Bad("nests too deeply");
    const bool before = std::exchange(is_unbounded_, false);
    std::string out;
    int count = 0;
    do {
      ++count;
      if (!out.empty()) out += '|';
      FOLIO_ASSIGN_OR_RETURN(const std::string sequence, Sequence());
      if (sequence.empty()) return Bad("has an empty alternative or group: write (...)? instead");
      out += sequence;
      if (out.size() > kMaxPatternBytes) return Bad("repeats too much");
    } while (Take('|'));
    if (is_unbounded_ && (depth_ > 1 || count > 1)) {
      return Bad("repeats without bound within a group or an alternative: use {n,m} there");
    }
    is_unbounded_ = is_unbounded_ || before;
    --depth_;
    return out;
  }

  absl::StatusOr<std::string> Sequence() {
    std::string out;
    while (!AtEnd() && Next() != '|' && Next() != ')') {
      FOLIO_ASSIGN_OR_RETURN(const Atom atom, ReadAtom());
      FOLIO_ASSIGN_OR_RETURN(const std::string item, Quantified(atom));
      out += item;
      if (out.size() > kMaxPatternBytes) return Bad("repeats too much");
    }
    return out;
  }

  absl::StatusOr<Atom> ReadAtom() {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        return ReadGroup();
      case '[':
        return ReadClass();
      case '\\':
        return ReadEscape();
      case '.':
        return Atom{absl::StrCat("[^", kEscaped, "]"), true};
      case '^':
      case '$':
        return Bad("has an anchor that is not at its beginning or end");
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
        return Bad("has a repetition of nothing, or a brace without a backslash");
      default:
        break;
    }
    if (!IsPlain(c)) return Bad("has a character that JSON must escape");
    Atom atom{std::string(1, c), true};
    // The rest of a character of several bytes.
    while ((static_cast<unsigned char>(Next()) & 0xC0) == 0x80) atom.text += text_[at_++];
    return atom;
  }

  static bool IsPlain(char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '"'; }

  absl::StatusOr<Atom> ReadGroup() {
    if (Take('?') && !Take(':')) return Bad("has a group that begins with (? but not with (?:");
    FOLIO_ASSIGN_OR_RETURN(const std::string inner, Alternatives());
    if (!Take(')')) return Bad("has a ( without its )");
    return Atom{absl::StrCat("(", inner, ")"), false};
  }

  absl::StatusOr<Atom> ReadClass() {
    std::string inner;
    const bool is_negated = Take('^');
    while (Next() != ']') {
      if (AtEnd()) return Bad("has a [ without its ]");
      const char c = text_[at_++];
      if (c == '[') return Bad("has a [ in a class without a backslash");
      if (c != '\\') {
        // A negated class leaves it out anyway.
        if (is_negated && !IsPlain(c)) continue;
        if (!IsPlain(c)) return Bad("has a character that JSON must escape");
        inner += c;
        continue;
      }
      const char escaped = Next();
      if (is_negated && !AtEnd() &&
          std::string_view("\\\"nrt").find(escaped) != std::string_view::npos) {
        ++at_;
        continue;
      }
      const bool is_known = escaped == 'd' || escaped == 'w' ||
                            (std::ispunct(static_cast<unsigned char>(escaped)) != 0 &&
                             escaped != '\\' && escaped != '"');
      if (!is_known) return Bad("has an escape in a class that is not supported there");
      inner.append({'\\', escaped});
      ++at_;
    }
    ++at_;
    if (inner.empty() && !is_negated) return Bad("has an empty class");
    return Atom{
        is_negated ? absl::StrCat("[^", inner, kEscaped, "]") : absl::StrCat("[", inner, "]"),
        true};
  }

  absl::StatusOr<Atom> ReadEscape() {
    const char c = Next();
    if (AtEnd()) return Bad("ends in a backslash");
    ++at_;
    switch (c) {
      case 'd':
        return Atom{"[0-9]", true};
      case 'w':
        return Atom{"[0-9A-Za-z_]", true};
      case 's':
        return Atom{" ", true};  // the others are control characters
      case 'D':
        return Atom{absl::StrCat("[^0-9", kEscaped, "]"), true};
      case 'W':
        return Atom{absl::StrCat("[^0-9A-Za-z_", kEscaped, "]"), true};
      case 'S':
        return Atom{absl::StrCat("[^ ", kEscaped, "]"), true};
      default:
        break;
    }
    const bool is_known = std::ispunct(static_cast<unsigned char>(c)) != 0 && c != '\\' && c != '"';
    if (!is_known) return Bad("has an escape that is not supported, or that JSON must escape");
    return Atom{std::string{'\\', c}, true};
  }

  absl::StatusOr<std::string> Quantified(const Atom& atom) {
    std::string out = atom.text;
    is_unbounded_ = is_unbounded_ || Next() == '*' || Next() == '+';
    if (Next() == '*' || Next() == '+' || Next() == '?') {
      out += text_[at_++];
    } else if (Take('{')) {
      FOLIO_ASSIGN_OR_RETURN(out, Repeated(atom));
    }
    if (Next() == '*' || Next() == '+' || Next() == '?' || Next() == '{') {
      return Bad("repeats a repetition");
    }
    return out;
  }

  absl::StatusOr<int> ReadCount() {
    int count = 0;
    while (std::isdigit(static_cast<unsigned char>(Next())) != 0) {
      count = 10 * count + (text_[at_++] - '0');
      if (count > kMaxRepeats) return Bad("repeats more than 1000 times");
    }
    return count;
  }

  // Behind the {.
  absl::StatusOr<std::string> Repeated(const Atom& atom) {
    if (std::isdigit(static_cast<unsigned char>(Next())) == 0)
      return Bad("has a { without a number");
    FOLIO_ASSIGN_OR_RETURN(const int min, ReadCount());
    int max = min;
    bool is_bounded = true;
    if (Take(',')) {
      is_bounded = Next() != '}';
      if (is_bounded) {
        FOLIO_ASSIGN_OR_RETURN(max, ReadCount());
      }
    }
    if (!Take('}')) return Bad("has a { without its }");
    if (is_bounded && (max < min || max == 0))
      return Bad("has a repetition {n,m} with m < n or m = 0");
    const auto copies = static_cast<size_t>(is_bounded ? max : min + 1);
    if (copies * (atom.text.size() + 3) > kMaxPatternBytes) return Bad("repeats too much");
    std::string out;
    for (int i = 0; i < min; ++i) out += atom.text;
    if (!is_bounded) {
      is_unbounded_ = true;
      return out + atom.text + "*";
    }
    for (int i = min; i < max; ++i) absl::StrAppend(&out, "(", atom.text);
    for (int i = min; i < max; ++i) out += ")?";
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_unbounded_ = false;  // something repeats without bound
};

}  // namespace

absl::StatusOr<std::string> PatternOfString(std::string_view pattern) {
  return Rewriter(pattern).Run();
}

std::string PatternOfLength(int64_t min, int64_t max) {
  return absl::StrCat("[^", kEscaped, "]{", min, ",", max < 0 ? "" : absl::StrCat(max), "}");
}

// Dates are those of all years, and fractions of a second what clocks give.
#define FOLIO_DATE                                                                            \
  R"([12]\d\d\d-(((0[13578]|1[02])-(0[1-9]|[12]\d|3[01]))|((0[469]|11)-(0[1-9]|[12]\d|30))|)" \
  R"((02-(0[1-9]|1\d|2[0-8]))))"
#define FOLIO_TIME R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+\-]([01]\d|2[0-3]):[0-5]\d))"
#define FOLIO_OCTET R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]\d|\d))"

const char* PatternOfFormat(std::string_view format) {
  if (format == "date") return FOLIO_DATE;
  if (format == "time") return FOLIO_TIME;
  if (format == "date-time") return FOLIO_DATE "T" FOLIO_TIME;
  if (format == "uuid") return R"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})";
  if (format == "ipv4")
    return FOLIO_OCTET R"(\.)" FOLIO_OCTET R"(\.)" FOLIO_OCTET R"(\.)" FOLIO_OCTET;
  if (format == "email") {
    return R"([0-9A-Za-z]{1,32}([._\-][0-9A-Za-z]{1,16}){0,2}@[0-9A-Za-z]{1,32}(\.[0-9A-Za-z]{1,16}){1,3})";
  }
  return nullptr;
}

}  // namespace folio
