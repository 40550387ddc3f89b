#include "shardwise/monitor/progress_line.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/monitor/format.h"

namespace shardwise::monitor {
namespace {

constexpr const char* kGap = "  ";
constexpr std::size_t kLeastBar = 10;
constexpr std::size_t kMostBar = 40;

struct Field {
  int rank;  // the highest is left out first
  std::string text;
};

constexpr int kBarRank = 4;

std::string head(const Progress& progress) {
  const std::string step = "step " + std::to_string(progress.record.step);
  return progress.steps > 0 ? concat(step, "/", progress.steps) : step;
}

std::string skipped(const Progress& progress) {
  if (progress.record.skipped) return concat("skipped (", progress.skipped, " so far)");
  return concat(progress.skipped, " skipped");
}

// In the order of the line.
std::vector<Field> fields(const Progress& progress) {
  const StepRecord& record = progress.record;
  std::vector<Field> all{{0, head(progress)},
                         {1, "loss " + digits(record.loss, 4)},
                         {5, "lr " + scientific(record.lr)},
                         {6, "norm " + digits(record.grad_norm, 3)}};
  if (record.loss_scale != 1) all.push_back({8, "scale " + scaled(record.loss_scale)});
  if (record.tokens_per_second > 0) {
    all.push_back({3, scaled(record.tokens_per_second) + " tok/s"});
  }
  if (record.peak_memory > 0) {
    all.push_back({9, "mem " + binary_bytes(record.peak_memory)});
  }
  if (progress.eta >= 0) all.push_back({2, "eta " + duration(progress.eta)});
  if (progress.skipped > 0) all.push_back({record.skipped ? 1 : 7, skipped(progress)});
  return all;
}

std::size_t width_of(const std::vector<Field>& fields) {
  std::size_t width = 0;
  for (const Field& field : fields) width += field.text.size() + 2;
  return width - 2;
}

// Leaves out what does not fit; the head stays.
void fit(std::vector<Field>& fields, std::size_t width) {
  while (fields.size() > 1 && width_of(fields) > width) {
    fields.erase(std::max_element(fields.begin(), fields.end(),
                                  [](const auto& a, const auto& b) { return a.rank < b.rank; }));
  }
}

std::string join(const std::vector<Field>& fields) {
  std::string line;
  for (const Field& field : fields) line += (line.empty() ? "" : kGap) + field.text;
  return line;
}

// "[=====>    ]", `width` columns with the brackets.
std::string bar(double share, std::size_t width) {
  const std::size_t inner = width - 2;
  const auto done =
      static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(inner));
  std::string text(done, '=');
  if (done < inner) text += '>';
  text.resize(inner, ' ');
  return "[" + text + "]";
}

}  // namespace

std::string plain_line(const Progress& progress) { return join(fields(progress)); }

std::string bar_line(const Progress& progress, int width) {
  const auto room = static_cast<std::size_t>(std::max(width, 1));
  std::vector<Field> shown = fields(progress);
  if (progress.steps > 0) {
    shown.insert(shown.begin() + 1, Field{kBarRank, std::string(kLeastBar, ' ')});
  }
  fit(shown, room);
  if (shown.size() > 1 && shown[1].rank == kBarRank) {
    const std::size_t left = room - width_of(shown);
    const double share =
        static_cast<double>(progress.record.step) / static_cast<double>(progress.steps);
    shown[1].text = bar(share, std::min(kLeastBar + left, kMostBar));
  }
  return join(shown).substr(0, room);
}

}  // namespace shardwise::monitor
