#include "shardwise/monitor/report_page.h"

#include <algorithm>
#include <cmath>

#include "shardwise/base/check.h"
#include "shardwise/monitor/chart.h"
#include "shardwise/monitor/format.h"
#include "shardwise/monitor/report_style.h"
#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

using State = RunHistory::State;

const char* name_of(State state) {
  switch (state) {
    case State::kRunning: return "running";
    case State::kFinished: return "finished";
    case State::kFailed: return "failed";
  }
  return "";
}

std::string title_of(const RunHistory& history) {
  return history.run().title.empty() ? "Training run" : html_text(history.run().title);
}

// More often than every 5 seconds disturbs reading.
std::string reload(const RunHistory& history, double seconds) {
  if (history.state() != State::kRunning) return "";
  const double pause = std::clamp(std::ceil(seconds), 5.0, 3600.0);
  return concat("<meta http-equiv=\"refresh\" content=\"", pause, "\">\n");
}

std::string header(const RunHistory& history, const std::string& now) {
  const char* state = name_of(history.state());
  std::string out = concat("<header>\n<p class=\"brand\">Shardwise training report</p>\n<h1>",
                           title_of(history), "</h1>\n<p class=\"state ", state, "\"><b>", state,
                           "</b> as of ", html_text(now), "</p>\n");
  if (!history.error().empty()) {
    out += concat("<pre class=\"error\">", html_text(history.error()), "</pre>\n");
  }
  return out + "</header>\n";
}

// The three are HTML.
std::string tile(const std::string& name, const std::string& value, const std::string& below) {
  return concat("<div class=\"tile\"><p>", name, "</p><p class=\"value\">", value, "</p><p>",
                below.empty() ? "&nbsp;" : below, "</p></div>\n");
}

// A model that knows nothing of the vocabulary has its size as perplexity; beyond that the number
// says nothing.
std::string perplexity(double loss) {
  return loss < 20 ? "perplexity " + digits(std::exp(loss), 3) : "";
}

std::string held_out_tile(const RunHistory::Totals& totals) {
  if (!totals.best) return tile("Best held-out loss", "&ndash;", "no evaluation yet");
  return tile(
      "Best held-out loss", digits(totals.best->loss, 4),
      concat("step ", totals.best->step, ", last ", digits(totals.last_evaluation->loss, 4)));
}

std::string steps_tile(const RunHistory& history) {
  const RunHistory::Totals& totals = history.totals();
  const std::int64_t done = totals.last ? totals.last->step : 0;
  const std::string planned = history.run().steps > 0 ? "of " + grouped(history.run().steps) : "";
  const std::string skipped =
      totals.skipped > 0 ? concat(planned.empty() ? "" : ", ", grouped(totals.skipped), " skipped")
                         : "";
  return tile("Steps", grouped(done), planned + skipped);
}

std::string time_tile(const RunHistory& history) {
  const auto& first = history.totals().first;
  const auto& last = history.totals().last;
  if (!last) return tile("Time", "&ndash;", "");
  const auto passed = static_cast<double>(last->step - first->step);
  const auto left = static_cast<double>(history.run().steps - last->step);
  std::string below;
  if (history.state() == State::kRunning && passed > 0 && left > 0) {
    below = "about " + duration((last->seconds - first->seconds) / passed * left) + " left";
  }
  return tile("Time", duration(last->seconds), below);
}

std::string tiles(const RunHistory& history) {
  const RunHistory::Totals& totals = history.totals();
  std::string out = "<section class=\"tiles\">\n";
  if (totals.last) {
    out += tile("Last loss", digits(totals.last->loss, 4), perplexity(totals.last->loss));
  } else {
    out += tile("Last loss", "&ndash;", "no step yet");
  }
  out += held_out_tile(totals);
  out +=
      tile("Tokens per second", totals.last ? scaled(totals.last->tokens_per_second) : "&ndash;",
           totals.last ? scaled(static_cast<double>(totals.last->tokens)) + " tokens in all" : "");
  if (totals.last && totals.last->peak_memory > 0) {
    out += tile("Peak memory", binary_bytes(totals.last->peak_memory), "rank 0");
  }
  return out + steps_tile(history) + time_tile(history) + "</section>\n";
}

struct Figure {
  std::string name, unit;
  std::string keys;  // HTML
  Chart chart;
};

std::string key(const char* kind, const std::string& text) {
  return concat("<span class=\"key ", kind, "\">", text, "</span>");
}

std::string figure(const Figure& figure) {
  const bool cut = !figure.chart.faint.empty() && vertical_range(figure.chart).cut;
  return concat("<figure><figcaption><b>", figure.name, "</b><span>", figure.unit,
                cut ? ", peaks cut off" : "", "</span>", figure.keys, "</figcaption>\n",
                svg_chart(figure.chart), "</figure>\n");
}

// A curve of few steps needs no average.
constexpr std::size_t kFewSteps = 50;

Figure measured(const std::string& name, const std::string& unit, const Curve& curve) {
  Figure figure{name, unit, "", {}};
  figure.chart.label = concat(name, " by step, ", unit);
  const bool average = curve.buckets().size() >= kFewSteps;
  (average ? figure.chart.faint : figure.chart.strong) = outline(curve);
  if (average) {
    figure.chart.strong = smoothed(curve);
    figure.keys = key("faint", "per step") + key("", "smoothed");
  }
  return figure;
}

Line as_line(const Curve& curve) {
  Line line;
  for (const Bucket& bucket : curve.buckets()) {
    if (bucket.count > 0) line.push_back({bucket.middle(), bucket.mean()});
  }
  return line;
}

void add_marks(Figure& figure, const Curve& curve, const RunHistory::Totals& totals) {
  figure.chart.marks = marked(curve);
  if (figure.chart.marks.empty()) return;
  figure.keys += key("mark", totals.not_finite == 0 ? "skipped"
                             : totals.skipped == 0  ? "not finite"
                                                    : "skipped or not finite");
}

std::string charts(const RunHistory& history) {
  const RunHistory::Curves& curves = history.curves();
  Figure loss = measured("Loss", "nats per token", curves.loss);
  loss.chart.points = as_line(curves.held_out);
  if (!loss.chart.points.empty()) loss.keys += key("held", "held-out");
  add_marks(loss, curves.loss, history.totals());
  Figure lr{"Learning rate", "", "", {}};
  lr.chart = {"Learning rate by step", {}, outline(curves.lr), {}, {}, true};
  Figure norm = measured("Gradient norm", "before clipping", curves.grad_norm);
  norm.chart.from_zero = true;
  add_marks(norm, curves.grad_norm, history.totals());
  Figure speed = measured("Throughput", "tokens per second", curves.tokens_per_second);
  speed.chart.from_zero = true;
  return "<section class=\"charts\">\n" + figure(loss) + figure(lr) + figure(norm) + figure(speed) +
         "</section>\n";
}

std::string samples(const RunHistory& history) {
  if (history.samples().empty()) return "";
  const std::int64_t all = history.totals().samples;
  const auto shown = static_cast<std::int64_t>(history.samples().size());
  std::string out = "<section>\n<h2>Samples";
  if (all > shown) out += concat(" (the last ", shown, " of ", all, ")");
  out += "</h2>\n";
  for (auto sample = history.samples().rbegin(); sample != history.samples().rend(); ++sample) {
    out +=
        concat("<div class=\"sample\"><p>step ", sample->step, "</p><pre><span class=\"prompt\">",
               html_text(sample->prompt), "</span>", html_text(sample->text), "</pre></div>\n");
  }
  return out + "</section>\n";
}

std::string configuration(const RunHistory& history) {
  if (history.run().config_json.empty()) return "";
  return concat("<details><summary>Configuration</summary>\n<pre>",
                html_text(history.run().config_json), "</pre></details>\n");
}

}  // namespace

std::string report_page(const RunHistory& history, const std::string& now, double seconds) {
  return concat("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
                reload(history, seconds), "<title>", title_of(history), " (",
                name_of(history.state()), ")</title>\n<style>", kReportStyle,
                "</style>\n</head>\n<body>\n<main>\n", header(history, now), tiles(history),
                charts(history), samples(history), configuration(history),
                "</main>\n</body>\n</html>\n");
}

}  // namespace shardwise::monitor
