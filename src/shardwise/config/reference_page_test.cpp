#include <gtest/gtest.h>

#include <set>
#include <string>

#include "shardwise/config/config.h"
#include "shardwise/config/schema.h"

namespace shardwise::config {
namespace {

TEST(ReferencePage, HasOneLineForEachKey) {
  const std::string page = reference_markdown();
  for (const Field& field : schema().fields()) {
    if (field.is_section()) {
      continue;
    }
    const std::string line = "\n| `" + field.path + "` | ";
    const std::size_t first = page.find(line);
    ASSERT_NE(first, std::string::npos) << field.path;
    EXPECT_EQ(page.find(line, first + 1), std::string::npos) << field.path;
  }
}

TEST(ReferencePage, EveryTableRowHasFiveCells) {
  const std::string page = reference_markdown();
  for (std::size_t at = page.find("\n| "); at != std::string::npos;
       at = page.find("\n| ", at + 1)) {
    const std::string line = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
    int bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
    }
    EXPECT_EQ(bars, 6) << line;
  }
}

TEST(ReferencePage, BeginsWithTheKeysThatMatter) {
  const std::string page = reference_markdown();
  const std::size_t begin = page.find("\n## ");
  ASSERT_EQ(page.compare(begin, 28, "\n## The keys to start with\n\n"), 0);
  const std::string part = page.substr(begin, page.find("\n## ", begin + 1) - begin);
  EXPECT_NE(part.find("\n- `zero_optimization.stage` ([zero_optimization](#zero_optimization)): "),
            std::string::npos);
  // Links lead to headings.
  int links = 0;
  for (std::size_t at = part.find("](#"); at != std::string::npos; at = part.find("](#", at + 1)) {
    const std::string anchor = part.substr(at + 3, part.find(')', at) - at - 3);
    const std::string heading = anchor == "top-level-keys" ? "Top-level keys" : anchor;
    EXPECT_NE(page.find("# " + heading + "\n"), std::string::npos) << anchor;
    ++links;
  }
  EXPECT_TRUE(links >= 8 && links <= 12) << links;
}

TEST(ReferencePage, JobFilesComeLast) {
  const std::string page = reference_markdown();
  const std::size_t head = page.find("\n## Job files of `shardwise train`\n");
  ASSERT_NE(head, std::string::npos);
  EXPECT_EQ(page.find("\n## ", head + 1), std::string::npos);
  for (const Field& field : schema().fields()) {
    if (!field.is_section()) {
      EXPECT_EQ(page.find("\n| `" + field.path + "` | ") > head, field.of_job) << field.path;
    }
  }
}

TEST(FieldList, EveryKeyIsDescribedAndHasItsReason) {
  for (const Field& field : schema().fields()) {
    EXPECT_FALSE(field.doc.empty()) << field.path;
    if (field.status == Status::kNoEffect || field.status == Status::kAccepted) {
      EXPECT_FALSE(field.reason.empty()) << field.path;
    }
    if (field.status == Status::kPart) {
      EXPECT_NE(schema().find(field.gate), nullptr) << field.path;
    }
  }
}

TEST(FieldList, EveryParentIsDeclared) {
  std::set<std::string> declared;
  for (const std::string& path : known_keys()) {
    EXPECT_TRUE(declared.insert(path).second) << path;
  }
  for (const std::string& path : known_keys()) {
    const std::size_t dot = path.rfind('.');
    const std::string parent = dot == std::string::npos ? "" : path.substr(0, dot);
    const bool pattern = parent.ends_with("*") || parent.ends_with("[]");
    EXPECT_TRUE(parent.empty() || pattern || declared.count(parent) > 0) << path;
  }
}

}  // namespace
}  // namespace shardwise::config
