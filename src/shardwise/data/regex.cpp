#include "shardwise/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

using CodePointer = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

constexpr std::uint32_t kHeapKibibytes = 64 << 10;  // for what the interpreter keeps
constexpr std::uint32_t kMostSteps = 10'000'000;    // of one search, about a tenth of a second
constexpr std::size_t kSearchesBetweenClocks = 256;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string error_text(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Processor time of this thread: the load of the machine does not matter.
double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

CodePointer compile(const std::string& expression, const std::string& where) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  SW_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  CodePointer code(pcre2_compile(units(expression), expression.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset,
                                 context.get()));
  SW_USER_CHECK(DataError, code != nullptr, where, ": the pattern ", io::quoted(expression),
                " cannot be used: ", error_text(error), " (byte ", offset, ")");
  // Fails where the system forbids memory that is writable and executable; then it is interpreted.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct Regex::Code {
  CodePointer pointer;
  std::string where;
};

Regex::Regex(const std::string& expression, std::string where) {
  SW_USER_CHECK(DataError, expression.size() <= (std::size_t{64} << 10), where, ": a pattern of ",
                expression.size(), " bytes is too long; 65536 are allowed");
  CodePointer pointer = compile(expression, where);
  code_ = std::make_shared<const Code>(Code{std::move(pointer), std::move(where)});
}

struct Regex::Search::State {
  MatchData match;
  MatchContext context;
  std::size_t searches = 0;
  double started = 0;
};

Regex::Search::Search(const Regex& regex, std::string_view text)
    : regex_(regex), text_(text), state_(std::make_unique<State>()) {
  state_->match.reset(pcre2_match_data_create(1, nullptr));
  state_->context.reset(pcre2_match_context_create(nullptr));
  SW_CHECK(state_->match != nullptr && state_->context != nullptr);
  const std::size_t steps = std::min<std::size_t>(kMostSteps, 100'000 + 64 * text.size());
  pcre2_set_match_limit(state_->context.get(), static_cast<std::uint32_t>(steps));
  pcre2_set_heap_limit(state_->context.get(), kHeapKibibytes);
}

Regex::Search::~Search() = default;

void Regex::Search::check_time() {
  if (++state_->searches % kSearchesBetweenClocks != 0) return;
  const double now = thread_seconds();
  if (state_->started == 0) state_->started = now;
  const double allowed = 2 + 20e-6 * static_cast<double>(text_.size());
  SW_USER_CHECK(DataError, now - state_->started <= allowed, regex_.code_->where,
                ": the pattern takes too long: more than ", allowed, " seconds for a text of ",
                text_.size(), " bytes; simplify it, or tokenize shorter texts");
}

std::optional<Regex::Span> Regex::Search::search(std::size_t from) {
  check_time();
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(regex_.code_->pointer.get(), units(text_), text_.size(), from,
                       PCRE2_NO_UTF_CHECK | options, state_->match.get(), state_->context.get());
  };
  int result = match(0);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
    result = match(PCRE2_NO_JIT);  // keeps its state in the heap
  }
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  SW_USER_CHECK(DataError, result >= 0, regex_.code_->where, ": the pattern failed on a text of ",
                text_.size(), " bytes: ", error_text(result),
                "; simplify it, or tokenize shorter texts");
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->match.get());
  return Span{ends[0], ends[1]};
}

std::optional<Regex::Span> Regex::Search::next() {
  while (at_ <= text_.size()) {
    const std::optional<Span> found = search(at_);
    if (!found) return std::nullopt;
    if (found->begin == found->end && last_end_ == found->end) {
      at_ += at_ < text_.size() ? first_code_point(text_.substr(at_)).bytes : 1;
      continue;
    }
    at_ = found->end;
    last_end_ = found->end;
    return found;
  }
  return std::nullopt;
}

}  // namespace shardwise::data
