"use strict";
/* Interactive pictures, drawn by Plotly (bundled above) when they come near the screen. */
(() => {
  const { data, state } = page;
  const palette = () => (page.isDark() ? data.palettes.dark : data.palettes.light);
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdashdot"];
  const CONFIG = { displayModeBar: false, responsive: true };
  const drawn = new Set();

  // Plotly reads a little HTML in its texts; names are the user's and must stay text.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => plain(text.length > 42 ? `${text.slice(0, 40)}…` : text);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const lineOf = (index, width = 2) => ({
    color: palette()[index % palette().length],
    dash: DASHES[Math.floor(index / palette().length) % DASHES.length],
    width,
  });

  function axis(title, extra = {}) {
    return { title: { text: title, standoff: 8 }, gridcolor: colour("grid"), linecolor: colour("muted"), zeroline: false,
      automargin: true, fixedrange: true, ...extra };
  }

  function layout(extra) {
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: 13, color: colour("ink") }, margin: { l: 56, r: 24, t: 10, b: 44 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("muted"), font: { color: colour("ink") } }, ...extra };
  }

  function reliability() {
    const bins = data.methods[state.method].bins;
    const x = bins.map((bin) => (bin.low_edge + bin.high_edge) / 2);
    const width = bins.map((bin) => bin.high_edge - bin.low_edge);
    const hover = bins.map((bin) =>
      `confidence ${bin.low_edge.toFixed(2)} to ${bin.high_edge.toFixed(2)}<br>${bin.cases.toLocaleString("en-US")} cases` +
      `<br>mean confidence ${numbers.percent(bin.confidence)}` +
      `<br>accuracy ${numbers.percent(bin.accuracy)} ${numbers.range([bin.low, bin.high])}` +
      `<br>noise floor ${numbers.range([bin.floor_low, bin.floor_high])}`);
    const common = { type: "bar", x, width, hovertemplate: "%{text}<extra></extra>", text: hover, textposition: "none" };
    const floor = { base: bins.map((bin) => bin.floor_low), y: bins.map((bin) => bin.floor_high - bin.floor_low) };
    const outline = { color: colour("band-edge"), width: 1.6 };
    // The boxes lie behind the bars, where they do not tint them; their outlines lie in front, to be seen at all.
    const traces = [
      { ...common, ...floor, name: "noise floor", marker: { color: colour("band"), line: outline } },
      { ...common, name: "accuracy", y: bins.map((bin) => bin.accuracy),
        // The accuracy of a few cases is mostly chance: it must not catch the eye.
        marker: { color: palette()[0], line: { color: colour("card"), width: 1 },
          opacity: bins.map((bin) => Math.min(1, Math.max(0.25, bin.cases / 50))) },
        error_y: { type: "data", symmetric: false, array: bins.map((bin) => bin.high - bin.accuracy),
          arrayminus: bins.map((bin) => bin.accuracy - bin.low), color: colour("ink"), thickness: 1.3, width: 4 } },
      { ...common, ...floor, showlegend: false, marker: { color: "rgba(0,0,0,0)", line: outline } },
      { type: "scatter", mode: "lines", name: "perfect", x: [0, 1], y: [0, 1], hoverinfo: "skip",
        line: { color: colour("muted"), dash: "dash", width: 1.5 } },
      { ...common, name: "right", yaxis: "y2", y: bins.map((bin) => bin.right), marker: { color: palette()[2] } },
      { ...common, name: "wrong", yaxis: "y2", base: bins.map((bin) => bin.right),
        y: bins.map((bin) => bin.cases - bin.right), marker: { color: palette()[1], pattern: { shape: "/" } } },
    ];
    return [traces, layout({
      barmode: "overlay", height: 460,
      xaxis: axis("Confidence", { range: [0, 1], anchor: "y2" }),
      yaxis: axis("Accuracy", { range: [0, 1.02], domain: [0.34, 1], tickformat: ".0%" }),
      yaxis2: axis("Cases", { domain: [0, 0.24], rangemode: "tozero" }),
    })];
  }

  const marker = (low) => [{ type: "line", x0: Math.max(state.threshold, low), x1: Math.max(state.threshold, low), xref: "x",
    yref: "paper", y0: 0, y1: 1, line: { color: colour("ink"), width: 1.5, dash: "dot" } }];
  const lowest = () => (state.threshold < 0.5 ? 0 : 0.5);

  function threshold() {
    const low = lowest();
    const thresholds = Array.from({ length: 101 }, (_, i) => low + (i * (1 - low)) / 100);
    const rows = thresholds.map((threshold) => numbers.atThreshold(page.model(state.method), threshold));
    const some = rows.filter((row) => row.automated > 0);
    const ends = { type: "scatter", mode: "lines", x: some.map((row) => row.threshold), line: { width: 0 }, hoverinfo: "skip",
      showlegend: false };
    const traces = [
      { type: "scatter", mode: "lines", name: "decided alone", x: thresholds, y: rows.map((row) => row.share), line: lineOf(0),
        hovertemplate: "%{y:.1%} decided alone<extra></extra>" },
      { ...ends, y: some.map((row) => row.interval[0]) },
      { ...ends, y: some.map((row) => row.interval[1]), fill: "tonexty", fillcolor: "rgba(213,94,0,0.2)" },
      { type: "scatter", mode: "lines", name: "of these right", x: some.map((row) => row.threshold),
        y: some.map((row) => row.accuracy), line: { ...lineOf(1), dash: "dash" },
        hovertemplate: "%{y:.2%} of these right<extra></extra>" },
      { type: "scatter", mode: "lines", name: "ECE", yaxis: "y2", x: some.map((row) => row.threshold),
        y: some.map((row) => row.ece), line: lineOf(2), hovertemplate: "ECE %{y:.2%}<extra></extra>" },
    ];
    return [traces, layout({
      height: 460, hovermode: "x unified", shapes: marker(low),
      xaxis: axis("Confidence threshold", { range: [low, 1], anchor: "y2", hoverformat: ".3f" }),
      yaxis: axis("Share", { range: [0, 1.02], domain: [0.34, 1], tickformat: ".0%" }),
      yaxis2: axis("ECE", { domain: [0, 0.24], rangemode: "tozero", tickformat: ".2~%" }),
    })];
  }

  function coverage() {
    const many = data.methods.length > 8;
    const traces = data.methods.map((method, index) => {
      const points = numbers.accuracyOverCoverage(page.model(index), 250);
      return { type: "scatter", mode: "lines", name: short(method.name), x: points.map((p) => p[0]),
        y: points.map((p) => p[1]), line: lineOf(index, index === state.method ? 4 : 1.8),
        hovertemplate: `${plain(method.name)}<br>%{x:.1%} automated, %{y:.2%} right<extra></extra>` };
    });
    return [traces, layout({
      height: many ? 420 + 14 * data.methods.length : 420,
      showlegend: data.methods.length > 1,
      legend: many ? { orientation: "h", y: -0.16, yanchor: "top", x: 0 } : layout({}).legend,
      xaxis: axis("Share of cases automated", { range: [0, 1], tickformat: ".0%" }),
      yaxis: axis("Accuracy of what is automated", { tickformat: ".1~%" }),
    })];
  }

  function pruning(index) {
    const { epochs, overall, classes, names } = data.methods[index].pruning;
    const step = { type: "scatter", mode: "lines", x: epochs };
    const traces = classes.map((series, k) => ({ ...step, y: series, name: short(names[k]), line: { ...lineOf(k, 1.5), shape: "hv" },
      hovertemplate: `${plain(names[k])}: %{y:.1%}<extra>epoch %{x}</extra>` }));
    traces.push({ ...step, y: overall, name: "all classes", line: { color: colour("ink"), width: 3, shape: "hv" },
      hovertemplate: "all: %{y:.1%}<extra>epoch %{x}</extra>" });
    return [traces, layout({ height: 380, xaxis: axis("Epoch"),
      yaxis: axis("Share trained on", { range: [0, 1.03], tickformat: ".0%" }) })];
  }

  const charts = { "chart-reliability": reliability, "chart-threshold": threshold, "chart-coverage": coverage };
  document.querySelectorAll(".chart[data-pruning]").forEach((box) => {
    charts[box.id] = () => pruning(Number(box.dataset.pruning));
  });

  function draw(id) {
    const box = document.getElementById(id);
    if (box.closest("[hidden]")) return;
    const [traces, look] = charts[id]();
    Plotly.react(box, traces, look, CONFIG);
    box.dataset.drawn = "true";
    drawn.add(id);
  }

  let waiting = 0;
  function later(work) {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(work);
  }

  page.onChange((what) => {
    if (what !== "threshold") {
      Object.keys(charts).filter((id) => drawn.has(id) || what === "method").forEach((id) => draw(id));
    } else if (drawn.has("chart-threshold")) {
      later(() => {
        const box = document.getElementById("chart-threshold");
        if (box.layout.xaxis.range[0] === lowest()) Plotly.relayout(box, { shapes: marker(lowest()) });
        else draw("chart-threshold");
      });
    }
  });

  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      near.unobserve(entry.target);
      if (!drawn.has(entry.target.id)) draw(entry.target.id);
    });
  }, { rootMargin: "600px" });
  Object.keys(charts).forEach((id) => near.observe(document.getElementById(id)));
  // What is far below is drawn when the browser has time: whoever jumps there, or takes a picture of the whole page, finds
  // no empty boxes.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 200));
  function rest() {
    const id = Object.keys(charts).find((id) => !drawn.has(id) && !document.getElementById(id).closest("[hidden]"));
    if (id === undefined) return;
    draw(id);
    idle(rest);
  }
  idle(rest);
  // Paper has no scrolling: whatever was never near the screen is drawn before printing.
  window.addEventListener("beforeprint", () => Object.keys(charts).forEach((id) => draw(id)));
  document.documentElement.dataset.ready = "true";
})();
