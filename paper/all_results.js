// Sorts a table by the column that was clicked: numbers by value, words by the alphabet, gaps last.
const key = (row, column) => {
  const cell = row.cells[column];
  const number = parseFloat(cell.dataset.value ?? cell.textContent);
  return Number.isNaN(number) ? cell.textContent : number;
};
const order = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === typeof b) return a.localeCompare(b);
  return typeof a === "number" ? -1 : 1;
};
for (const head of document.querySelectorAll("th")) {
  head.firstChild.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(key(a, head.cellIndex), key(b, head.cellIndex)));
    body.append(...(down ? rows.reverse() : rows));
  });
}
// Rows that hold every word that was typed, here or in a hint.
document.getElementById("filter").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("tbody tr")) {
    const text = [row.textContent, ...[...row.cells].map((cell) => cell.title)].join(" ").toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
});
document.documentElement.dataset.ready = "true";
