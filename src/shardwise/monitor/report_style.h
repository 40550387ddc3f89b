// The style sheet of the report page.
#pragma once

namespace shardwise::monitor {

// Line and held-out colours are blue and orange: apart for colour-blind readers, too.
inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark; --page: #f5f6f8; --card: #fff; --edge: #e2e5ea; --text: #1a1f27;
  --soft: #5c6675; --grid: #e8ebef; --base: #b4bcc8; --line: #2463d1; --held: #c2500a;
  --mark: #c92a2a; --good: #1b7a43; --code: #f2f4f7; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1217; --card: #181c23; --edge: #2a303a; --text: #e6e9ee; --soft: #9aa5b5;
    --grid: #262c36; --base: #566072; --line: #74a7ff; --held: #ffa05c; --mark: #ff8080;
    --good: #63cf92; --code: #12161c; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: 0 0 10px; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 32px 0 10px; }
.brand { margin: 0 0 4px; color: var(--soft); font-size: .85rem; letter-spacing: .02em; }
.state { margin: 0; color: var(--soft); font-size: .9rem; }
.state b { display: inline-block; padding: 1px 12px; margin-right: 8px; border-radius: 99px;
  border: 1px solid; font-weight: 600; }
.running b { color: var(--line); } .finished b { color: var(--good); } .failed b { color: var(--mark); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: 12px;
  margin: 22px 0 12px; }
.tile, figure, .sample, details { background: var(--card); border: 1px solid var(--edge);
  border-radius: 10px; }
.tile { padding: 12px 16px; }
.tile p { margin: 0; font-size: .82rem; color: var(--soft); }
.tile .value { font-size: 1.5rem; line-height: 1.35; font-weight: 650; color: var(--text);
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr));
  gap: 12px; }
figure { margin: 0; padding: 14px 16px 10px; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 14px; align-items: baseline; margin-bottom: 6px;
  font-size: .82rem; color: var(--soft); }
figcaption b { font-size: .98rem; color: var(--text); }
.key { white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 16px; height: 3px; border-radius: 2px;
  margin-right: 5px; vertical-align: middle; background: var(--line); }
.key.faint::before { opacity: .35; } .key.held::before { background: var(--held); }
.key.mark::before { width: 0; height: 0; background: none; border-radius: 0;
  border: 5px solid transparent; border-top: 0; border-bottom: 8px solid var(--mark); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg svg { overflow: hidden; }
.grid { stroke: var(--grid); } .base { stroke: var(--base); }
.tick { fill: var(--soft); font-size: 13px; text-anchor: middle; font-variant-numeric: tabular-nums; }
.tick.y { text-anchor: end; }
path { fill: none; stroke-linecap: round; stroke-linejoin: round; }
.faint { stroke: var(--line); stroke-opacity: .35; stroke-width: 1.2; }
.strong { stroke: var(--line); stroke-width: 2; }
.held { stroke: var(--held); stroke-width: 2; }
.dot { fill: var(--held); stroke: var(--card); stroke-width: 1.5; }
.reading { fill: transparent; }
path.mark { fill: var(--mark); stroke: none; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4;
  font: .84rem/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.sample { padding: 12px 16px; margin-bottom: 10px; }
.sample p { margin: 0 0 6px; font-size: .82rem; color: var(--soft); }
.prompt { color: var(--soft); }
.error { border: 1px solid var(--mark); border-radius: 10px; background: var(--card);
  padding: 12px 16px; margin-top: 14px; }
details { margin-top: 32px; padding: 12px 16px; }
summary { cursor: pointer; font-weight: 600; }
details pre { margin-top: 10px; padding: 12px; background: var(--code); border-radius: 6px; }
@media (max-width: 560px) {
  main { padding: 18px 12px 32px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile .value { font-size: 1.25rem; }
  figure { padding: 12px 10px 8px; }
  .tick { font-size: 21px; } .tick.name { display: none; }
  .faint, .strong, .held { stroke-width: 2.6; }
}
)css";

}  // namespace shardwise::monitor
