// Text of foreign origin (titles, prompts, what a model wrote) made safe for where it goes. Bytes
// that are no UTF-8 become U+FFFD, one for each maximal part of a sequence (Unicode standard, 3.9,
// "Substitution of Maximal Subparts"), as Python and browsers do it.
#pragma once

#include <string>
#include <string_view>

namespace shardwise::monitor {

// A JSON string with its quotes.
std::string json_string(std::string_view text);

// For element content and quoted attributes of HTML and SVG. Control characters become U+FFFD,
// except tab and line feed.
std::string html_text(std::string_view text);

// For terminals: control characters become U+FFFD, except tab and line feed, so that no text can
// move the cursor or change the terminal.
std::string printable_text(std::string_view text);

// The first `bytes` bytes, shortened so that no character is cut.
std::string_view cut_text(std::string_view text, std::size_t bytes);

}  // namespace shardwise::monitor
