// What the page adds when scripts run: a readout under each chart, tables that sort and filter, copying of commands.
// Everything is readable without it. It fetches nothing.
"use strict";

const number = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 5 });

/** Show the numbers of a chart at the point nearest to the pointer, or step through them with the arrow keys. */
function readable(figure) {
  const { label, x, columns, notes } = JSON.parse(figure.querySelector("script").textContent);
  const output = figure.querySelector(".readout");
  let at = x.length - 1;

  const show = (svg, index) => {
    at = Math.min(x.length - 1, Math.max(0, index));
    const [low, high] = svg.dataset.x.split(" ").map(Number);
    const [left, right] = svg.dataset.box.split(" ").map(Number);
    const cross = svg.querySelector(".cross");
    const place = left + ((x[at] - low) / (high - low)) * (right - left);
    cross.setAttribute("x1", place);
    cross.setAttribute("x2", place);
    cross.removeAttribute("hidden");
    const values = columns.map((c) => `${c.name} ${number(c.y[at])}`);
    output.textContent = [`${label} ${number(x[at])}`, ...values, ...(notes ? [notes[at]] : [])].join(" · ");
  };
  const nearest = (svg, clientX) => {
    const box = svg.getBoundingClientRect();
    const [low, high] = svg.dataset.x.split(" ").map(Number);
    const [left, right] = svg.dataset.box.split(" ").map(Number);
    const units = ((clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const value = low + ((units - left) / (right - left)) * (high - low);
    return x.reduce((best, here, index) => (Math.abs(here - value) < Math.abs(x[best] - value) ? index : best), 0);
  };
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity };
  for (const svg of figure.querySelectorAll("svg")) {
    svg.addEventListener("pointermove", (event) => show(svg, nearest(svg, event.clientX)));
    svg.addEventListener("pointerleave", () => svg.querySelector(".cross").setAttribute("hidden", ""));
    svg.addEventListener("focus", () => show(svg, at));
    svg.addEventListener("blur", () => svg.querySelector(".cross").setAttribute("hidden", ""));
    svg.addEventListener("keydown", (event) => {
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(svg, at + steps[event.key]);
    });
  }
}

/** Let the buttons in a table's head sort it, and its search field filter it by all the words typed. */
function workable(section) {
  const body = section.querySelector("tbody");
  const rows = [...body.rows];
  const heads = [...section.querySelectorAll("thead th")];
  const search = section.querySelector("input[type=search]");
  const count = section.querySelector(".count");
  const words = rows.map((row) => row.textContent.toLocaleLowerCase());

  const key = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const numeric = head.dataset.type === "number";
      const first = numeric ? "descending" : "ascending";
      const other = numeric ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const compare = numeric
        ? (a, b) => Number(key(a, column)) - Number(key(b, column))
        : (a, b) => key(a, column).localeCompare(key(b, column));
      const sorted = [...rows].sort(compare);
      body.append(...(order === "ascending" ? sorted : sorted.reverse()));
    });
  });
  const filter = () => {
    const wanted = search.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, index) => {
      const fits = wanted.every((word) => words[index].includes(word));
      row.hidden = !fits;
      shown += fits;
    });
    count.textContent = `${shown} of ${rows.length} ${section.dataset.rows ?? "documents"} shown`;
  };
  search.addEventListener("input", filter);
  filter();
}

/** Put a button on each block of commands that copies it. */
function copyable(block) {
  if (!navigator.clipboard) return;
  const button = block.querySelector("button");
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

document.querySelectorAll("figure.chart").forEach(readable);
document.querySelectorAll(".documents, .experiments").forEach(workable);
document.querySelectorAll(".command").forEach(copyable);
