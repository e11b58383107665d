"use strict";
/* Charts of a watched stream, drawn by Plotly (bundled above). */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CONFIG = { displayModeBar: false, responsive: true };
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdashdot"];
  const theme = document.getElementById("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const palette = () => (isDark() ? data.palettes.dark : data.palettes.light);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  // Plotly reads a little HTML in its texts; names are the user's and must stay text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  const axis = (title, extra = {}) => ({ title: { text: title, standoff: 8 }, gridcolor: colour("grid"),
    linecolor: colour("muted"), zeroline: false, automargin: true, fixedrange: true, ...extra });

  const layout = (extra) => ({ paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
    hovermode: "closest", font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") },
    margin: { l: 56, r: 24, t: 10, b: 44 }, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("muted"), font: { color: colour("ink") } }, ...extra });

  const upright = (x, dash) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1,
    line: { color: colour("bad"), width: 1.6, dash } });
  const marks = (signal) => [...(signal.since ? [upright(signal.since, "dot")] : []),
    ...(signal.alarm ? [upright(signal.alarm, "solid")] : [])];

  function overTime(signal) {
    const { curve } = signal;
    const line = { type: "scatter", mode: "lines", x: curve.case, hovertemplate: "case %{x:,}: %{y:.2%}<extra></extra>" };
    const band = curve.low.length ? [
      { ...line, name: "low", y: curve.low, line: { width: 0 }, showlegend: false, hoverinfo: "skip", hovertemplate: null },
      { ...line, name: "band", y: curve.high, line: { width: 0 }, fill: "tonexty", fillcolor: colour("band"),
        hoverinfo: "skip", hovertemplate: null },
    ] : [];
    const ends = [curve.case[0], curve.case[curve.case.length - 1]];
    // The mean of a handful of cases would leave no room for the rest.
    const settled = curve.recent.slice(Math.floor(curve.recent.length / 8));
    const lowest = Math.min(signal.expected, ...settled);
    const highest = Math.max(signal.expected, ...settled);
    const room = Math.max(0.1 * (highest - lowest), 0.002);
    return [[
      ...band,
      { ...line, name: "last cases", y: curve.recent, line: { color: palette()[0], width: 2.6 } },
      { ...line, name: "mean so far", y: curve.seen, line: { color: colour("ink"), width: 1.2 } },
      { ...line, name: signal.low !== null ? "promised" : "calibration cases", x: ends,
        y: [signal.expected, signal.expected], line: { color: colour("muted"), dash: "dash", width: 1.8 } },
    ], layout({ height: 320, shapes: marks(signal), xaxis: axis("Case"),
      yaxis: axis("", { tickformat: ".1%", range: [Math.max(lowest - room, 0), Math.min(highest + room, 1)] }) })];
  }

  function evidence() {
    const lines = data.signals.map((signal, index) => ({
      type: "scatter", mode: "lines", name: plain(signal.title), x: signal.curve.case,
      // Over what raises the alarm of this test, so that one line serves all of them.
      y: signal.curve.evidence.map((value) => value + Math.log10(signal.level)),
      line: { color: palette()[index % palette().length], dash: DASHES[Math.floor(index / palette().length) % 5], width: 2 },
      hovertemplate: "case %{x:,}: 10^%{y:.1f} of an alarm<extra></extra>",
    }));
    const highest = Math.max(1, ...lines.flatMap((line) => line.y));
    return [lines, layout({ height: 360, xaxis: axis("Case"),
      yaxis: axis("Evidence, alarm at 0 (powers of ten)", { range: [-5, Math.min(highest + 0.5, 12)] }),
      shapes: [{ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: 0, y1: 0,
        line: { color: colour("bad"), width: 1.6 } }] })];
  }

  function draw() {
    Plotly.react("chart-evidence", ...evidence(), CONFIG);
    data.signals.slice(0, data.charted).forEach((signal, index) => Plotly.react(`chart-${index}`, ...overTime(signal), CONFIG));
    theme.setAttribute("aria-pressed", String(isDark()));
  }

  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  dark.addEventListener("change", draw);
  draw();
  document.documentElement.dataset.ready = "true";
})();
