// Regular expressions of Oniguruma, in its Ruby-like default syntax, to PCRE2.
//
// Both search alike; some constructs are spelled the same and mean something else, and are
// rewritten:
//   \s \S        White_Space; PCRE2 adds U+180E
//   \w \W \b \B  Alphabetic, M, Nd, Pc; outside of brackets also ² ³ ¹ ¼ ½ ¾
//   \h \H        hexadecimal digits; in PCRE2 horizontal space
//   \v           the character U+000B; in PCRE2 vertical space
//   \uHHHH       PCRE2 spells \x{HHHH}
//   \p{...}      long names; scripts are by Script, in PCRE2 by Script_Extensions
//   [[:alpha:]]  Unicode classes
//   (?m:...)     "." matches newlines; in PCRE2 (?s:...)
//   {,n}         {0,n}
//   [a[b]], [a&&b]   unions and intersections of classes
// ^ and $ are about lines always, "." excludes \n only: options that regex.cpp sets. Refused: back
// references, calls, conditions, callouts, absent operators, named groups, comments, option x, {n}?
// and {n,m}+ (which repeat a repetition), \x80 to \xFF (raw bytes), \K, \R, \X and other rare
// escapes.
#pragma once

#include <string>
#include <string_view>

namespace shardwise::data {

// Character classes without their brackets.
inline constexpr std::string_view kSpaceClass = "\\x09-\\x0d\\x{85}\\p{Z}";
inline constexpr std::string_view kWordClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// `where` starts the errors. Throws DataError.
std::string onig_to_pcre2(std::string_view expression, const std::string& where);

}  // namespace shardwise::data
