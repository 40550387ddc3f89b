#include "shardwise/data/unicode_names.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "shardwise/data/onig_syntax.h"

namespace shardwise::data {
namespace {

struct Category {
  std::string_view short_name;
  std::string_view long_name;
};

// Unicode 15.0, PropertyValueAliases.txt, General_Category.
constexpr std::array<Category, 38> kCategories = {{
    {"C", "other"},
    {"Cc", "control"},
    {"Cf", "format"},
    {"Cn", "unassigned"},
    {"Co", "privateuse"},
    {"Cs", "surrogate"},
    {"L", "letter"},
    {"Ll", "lowercaseletter"},
    {"Lm", "modifierletter"},
    {"Lo", "otherletter"},
    {"Lt", "titlecaseletter"},
    {"Lu", "uppercaseletter"},
    {"M", "mark"},
    {"M", "combiningmark"},
    {"Mc", "spacingmark"},
    {"Me", "enclosingmark"},
    {"Mn", "nonspacingmark"},
    {"N", "number"},
    {"Nd", "decimalnumber"},
    {"Nl", "letternumber"},
    {"No", "othernumber"},
    {"P", "punctuation"},
    {"Pc", "connectorpunctuation"},
    {"Pd", "dashpunctuation"},
    {"Pe", "closepunctuation"},
    {"Pf", "finalpunctuation"},
    {"Pi", "initialpunctuation"},
    {"Po", "otherpunctuation"},
    {"Ps", "openpunctuation"},
    {"S", "symbol"},
    {"Sc", "currencysymbol"},
    {"Sk", "modifiersymbol"},
    {"Sm", "mathsymbol"},
    {"So", "othersymbol"},
    {"Z", "separator"},
    {"Zl", "lineseparator"},
    {"Zp", "paragraphseparator"},
    {"Zs", "spaceseparator"},
}};

// Properties that PCRE2 knows by the same name.
constexpr std::array<std::string_view, 12> kProperties = {"any",
                                                          "emoji",
                                                          "emojicomponent",
                                                          "emojimodifier",
                                                          "emojimodifierbase",
                                                          "emojipresentation",
                                                          "extendedpictographic",
                                                          "ideographic",
                                                          "unifiedideograph",
                                                          "diacritic",
                                                          "extender",
                                                          "dash"};

// Classes whose sets Oniguruma and PCRE2 define differently, and whose use nobody misses.
constexpr std::array<std::string_view, 7> kRefused = {"punct",  "graph", "print", "cntrl",
                                                      "xdigit", "blank", "lc"};

std::string plain(std::string_view name) {
  std::string made;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') {
      made += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return made;
}

NamedSet posix_set(const std::string& name) {
  if (name == "alpha" || name == "alphabetic") return {"\\p{Alphabetic}"};
  if (name == "upper" || name == "uppercase") return {"\\p{Uppercase}", true};
  if (name == "lower" || name == "lowercase") return {"\\p{Lowercase}", true};
  if (name == "digit") return {"\\p{Nd}"};
  if (name == "alnum") return {"\\p{Alphabetic}\\p{Nd}"};
  if (name == "space" || name == "whitespace") return {std::string(kSpaceClass)};
  if (name == "word") return {std::string(kWordClass)};
  if (name == "ascii") return {"\\x00-\\x7f"};
  return {};
}

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c));
  });
}

}  // namespace

NamedSet find_named_set(std::string_view given) {
  const std::string name = plain(given);
  if (!is_name(name) || std::ranges::find(kRefused, name) != kRefused.end()) return {};
  for (const Category& category : kCategories) {
    if (name == category.long_name || name == plain(category.short_name)) {
      const bool cased =
          category.short_name == "Lu" || category.short_name == "Ll" || category.short_name == "Lt";
      return {"\\p{" + std::string(category.short_name) + "}", cased};
    }
  }
  if (NamedSet set = posix_set(name); !set.body.empty()) return set;
  if (std::ranges::find(kProperties, name) != kProperties.end()) return {"\\p{" + name + "}"};
  return {"\\p{sc:" + name + "}"};
}

}  // namespace shardwise::data
