"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dialog = document.getElementById("details");
  const title = document.getElementById("details-title");
  const body = document.getElementById("details-body");

  const make = (kind, text, style) => {
    const node = document.createElement(kind);
    if (text !== undefined) node.textContent = text;
    if (style) node.className = style;
    return node;
  };
  const points = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);

  const describeRun = (name, open) => {
    const run = data.runs[name];
    const part = make("section");
    part.append(make("h3", name));
    const facts = [`seed ${run.seed}`, run.state + (run.reason ? `: ${run.reason}` : "")];
    if (run.epoch !== null) facts.push(`model of epoch ${run.epoch}`);
    if (run.recipe) facts.push(`recipe ${run.recipe}`);
    if (run.device) facts.push(run.device);
    if (run.version) facts.push(`stablenet ${run.version}`);
    if (run.preset) facts.push(`preset version ${run.preset}`);
    if (run.decided) facts.push(run.decided);
    part.append(make("p", facts.join(" · "), "facts"), make("p", run.path, "facts"));
    part.append(make("pre", run.command, "command"));
    const more = make("details");
    more.open = open;
    more.append(make("summary", "config"), make("pre", JSON.stringify(run.config, null, 1), "config"));
    part.append(more);
    return part;
  };

  const describeSeeds = (cell) => {
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const name of ["seed", "accuracy", "runs"]) {
      const th = make("th", name);
      th.scope = "col";
      head.append(th);
    }
    const rows = table.createTBody();
    for (const [seed, value, runs] of cell.seeds) {
      const row = rows.insertRow();
      row.insertCell().textContent = seed;
      row.insertCell().textContent = `${value.toFixed(2)} %`;
      row.insertCell().textContent = runs.length;
    }
    return table;
  };

  const summarise = (cell) => {
    if (cell.mean === null) return `${cell.state}: ${cell.reason}`;
    const told = [`mean ${cell.mean.toFixed(2)} %`];
    if (cell.deviation !== null) told.push(`sample standard deviation ${cell.deviation.toFixed(2)}`);
    if (cell.difference !== null) told.push(`paper ${cell.paper.toFixed(2)}${cell.quoted ? " (quoted)" : ""}, difference ${points(cell.difference)}`);
    const versus = cell.versus;
    if (versus) {
      const interval = versus.low === null ? "one seed" : `95 % interval ${points(versus.low)} to ${points(versus.high)}`;
      told.push(`against the reference ${points(versus.mean)} points (${interval})`);
    }
    return told.join("; ");
  };

  const showCell = (key) => {
    const cell = data.cells[key];
    title.textContent = cell.title;
    const names = [...cell.seeds.flatMap(([, , runs]) => runs), ...cell.unfinished];
    body.replaceChildren(make("p", cell.table, "facts"), make("p", summarise(cell)));
    if (cell.seeds.length) body.append(describeSeeds(cell));
    body.append(...names.map((name) => describeRun(name, false)));
    if (!names.length) body.append(make("p", "There are no runs behind this cell.", "facts"));
    dialog.showModal();
    dialog.scrollTop = 0;
  };

  const showRun = (name) => {
    title.textContent = "Run";
    body.replaceChildren(describeRun(name, true));
    dialog.showModal();
    dialog.scrollTop = 0;
  };

  const read = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (text === "") return null; // missing: last in both directions
    return Number.isNaN(Number(text)) ? text : Number(text);
  };
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const sortBy = (button) => {
    const head = button.closest("th");
    const table = head.closest("table");
    const place = head.cellIndex;
    const first = place === 0 ? "ascending" : "descending"; // of accuracies the best is wanted
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const th of table.querySelectorAll("th[aria-sort]")) th.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(read(a.cells[place]), read(b.cells[place]), sign));
    table.tBodies[0].append(...rows);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.cell) showCell(button.dataset.cell);
    else if (button.dataset.run) showRun(button.dataset.run);
    else if (button.classList.contains("sort")) sortBy(button);
  });
})();
