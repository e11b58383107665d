"use strict";
/* Controls: which method, which threshold, which costs; sorting; light and dark. Works before the charts are there. */
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const decoded = new Map(); // a method is decoded when it is first looked at
  const state = { method: 0, threshold: data.threshold };
  const listeners = [];

  function model(index) {
    if (!decoded.has(index)) decoded.set(index, numbers.decode(data.methods[index]));
    return decoded.get(index);
  }

  const current = () => numbers.atThreshold(model(state.method), state.threshold);
  const displayName = () => (data.methods.length === 1 ? "this model" : data.methods[state.method].name);
  // Three digits read like the sentence above them; small amounts keep their cents.
  const money = (value) => value.toLocaleString("en-US", { maximumFractionDigits: value < 100 ? 2 : 0 });

  function costs() {
    const read = (id) => Math.max(0, Number($(id).value) || 0);
    return [read("cost-error"), read("cost-review")];
  }

  function showNumbers() {
    const result = current();
    const { percent, range, perThousand } = numbers;
    const { rule_threshold: ruleThreshold, promises_nothing: promisesNothing } = data.methods[state.method];
    // At the rule's own threshold the promise above says the same.
    $("headline").hidden = state.threshold === ruleThreshold;
    $("headline").textContent = (promisesNothing ? "Not promised. " : "") + numbers.headline(displayName(), result);
    $("label-share").textContent = promisesNothing ? "Not promised: decided alone" : "Decided alone";
    $("label-accuracy").textContent = promisesNothing ? "Not promised: of these right" : "Of these right";
    $("out-share").textContent = percent(result.share);
    $("out-share-note").textContent = `${result.automated.toLocaleString("en-US")} of ${result.cases.toLocaleString("en-US")} cases`;
    $("out-accuracy").textContent = percent(result.accuracy);
    $("out-accuracy-note").textContent = result.automated ? `95\u00a0% interval ${range(result.interval)}` : "nothing is automated";
    $("out-ece").textContent = percent(result.ece, 2);
    $("out-review").textContent = perThousand(result.reviewed, result.cases);
    $("out-errors").textContent = ((1000 * (result.automated - result.right)) / result.cases).toFixed(1);
    const [errorCost, reviewCost] = costs();
    $("out-cost").textContent = money(numbers.cost(result, errorCost, reviewCost));
    $("threshold").setAttribute("aria-valuetext",
      `${numbers.confidenceText(state.threshold)}: ${percent(result.share)} automated, ${percent(result.accuracy)} of them right`);
  }

  function showCheapest() {
    const [errorCost, reviewCost] = costs();
    const best = numbers.cheapest(model(state.method), errorCost, reviewCost);
    const button = $("use-cheapest");
    button.hidden = best.threshold === null;
    button.dataset.threshold = best.threshold === null ? "" : String(best.threshold);
    $("cheapest").textContent = best.threshold === null
      ? `At these costs a person should see every case (${money(best.cost)} per 1,000).`
      : `Cheapest on these cases: threshold ${best.threshold.toFixed(4)}, cost ${money(best.cost)} per 1,000.`;
  }

  function setThreshold(value, source) {
    if (!Number.isFinite(value)) return;
    state.threshold = Math.min(1, Math.max(0, value));
    if (source !== "slider") $("threshold").value = String(state.threshold);
    if (source !== "number") $("threshold-number").value = numbers.confidenceText(state.threshold);
    showNumbers();
    listeners.forEach((listen) => listen("threshold"));
  }

  /* A table that is wider than its box says so: not every screen shows a scroll bar. */
  function markWideTables() {
    document.querySelectorAll(".scroll").forEach((box) => {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    });
  }

  function setMethod(index) {
    state.method = index;
    $("method").value = String(index);
    document.querySelectorAll("[data-method]").forEach((block) => {
      block.hidden = Number(block.dataset.method) !== index;
    });
    document.querySelectorAll("#comparison tbody tr").forEach((row) => {
      row.classList.toggle("chosen", data.methods.length > 1 && Number(row.dataset.row) === index);
    });
    showNumbers();
    showCheapest();
    markWideTables();
    listeners.forEach((listen) => listen("method"));
  }

  function sortTable(table, header) {
    const column = [...header.parentElement.children].indexOf(header);
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((cell) => cell.setAttribute("aria-sort", "none"));
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const keyOf = (row) => row.children[column].dataset.value ?? row.children[column].textContent.trim();
    const numeric = header.dataset.sort === "number";
    const compare = (a, b) => {
      if (numeric && (a === "" || b === "")) return (a === "") - (b === ""); // what is missing stays last
      const order = numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
      return ascending ? order : -order;
    };
    const body = table.tBodies[0];
    [...body.rows].map((row) => [keyOf(row), row]).sort((x, y) => compare(x[0], y[0]))
      .forEach(([, row]) => body.appendChild(row));
    $("status").textContent = `Sorted by ${header.textContent.trim()}, ${ascending ? "ascending" : "descending"}.`;
  }

  function isDark() {
    const forced = document.documentElement.dataset.theme;
    return forced ? forced === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    $("theme").setAttribute("aria-pressed", String(isDark()));
    listeners.forEach((listen) => listen("theme"));
  }

  let onPaper = false;
  function printing(on) {
    if (on === onPaper) return;
    onPaper = on;
    document.querySelectorAll("details").forEach((block) => {
      if (on) {
        block.dataset.was = String(block.open);
        block.open = true;
      } else block.open = block.dataset.was === "true";
    });
    const root = document.documentElement;
    if (on) {
      root.dataset.was = root.dataset.theme ?? "";
      setTheme("light");
    } else if (root.dataset.was) setTheme(root.dataset.was);
    else {
      delete root.dataset.theme;
      setTheme();
    }
  }

  function connect() {
    $("controls").hidden = false;
    $("threshold").addEventListener("input", (event) => setThreshold(event.target.valueAsNumber, "slider"));
    $("threshold-number").addEventListener("input", (event) => setThreshold(event.target.valueAsNumber, "number"));
    $("method").addEventListener("change", (event) => setMethod(Number(event.target.value)));
    for (const id of ["cost-error", "cost-review"]) {
      $(id).addEventListener("input", () => {
        showNumbers();
        showCheapest();
      });
    }
    document.querySelectorAll("[data-threshold]").forEach((button) => {
      button.addEventListener("click", () => setThreshold(Number(button.dataset.threshold), "button"));
    });
    document.querySelectorAll("table.sortable").forEach((table) => {
      table.querySelectorAll("th button").forEach((button) => {
        button.addEventListener("click", () => sortTable(table, button.closest("th")));
      });
    });
    document.querySelectorAll("[data-select]").forEach((button) => {
      button.addEventListener("click", () => {
        setMethod(Number(button.dataset.select));
        $("status").textContent = `Now showing ${data.methods[state.method].name}.`;
      });
    });
    $("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
    window.addEventListener("resize", markWideTables);
    document.querySelectorAll("details").forEach((block) => block.addEventListener("toggle", markWideTables));
    window.addEventListener("beforeprint", () => printing(true));
    window.addEventListener("afterprint", () => printing(false));
    setTheme();
    setThreshold(state.threshold, "start");
    setMethod(0);
  }

  /* Reading Plotly takes most of a second. The page is painted and the slider works before that begins. */
  function loadCharts() {
    document.querySelectorAll("script.later").forEach((holder) => {
      const script = document.createElement("script");
      script.textContent = holder.textContent;
      holder.replaceWith(script);
    });
  }

  connect();
  document.documentElement.dataset.live = "true";
  requestAnimationFrame(() => setTimeout(loadCharts, 0));
  return { data, state, model, current, isDark, onChange: (listen) => listeners.push(listen) };
})();
