// A click on a heading sorts its table: numbers by size, words by the alphabet, what is missing last; a second click turns it round.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], headings = [...table.tHead.rows[0].cells];
  const value = (row, index) => {
    const cell = row.cells[index], text = cell.dataset.value ?? cell.firstChild?.textContent?.trim() ?? "";
    return text === "" || text === "-" ? null : Number.isFinite(Number(text)) ? Number(text) : text;
  };
  headings.forEach((heading, index) => heading.querySelector("button.sort")?.addEventListener("click", () => {
    const sign = heading.ariaSort === "ascending" ? -1 : 1;
    headings.forEach((each) => each.removeAttribute("aria-sort"));
    heading.ariaSort = sign === 1 ? "ascending" : "descending";
    const rows = [...body.rows].map((row) => ({ row, key: value(row, index) }));
    rows.sort((a, b) => a.key === null || b.key === null ? (a.key === null) - (b.key === null)
      : sign * (typeof a.key === "number" && typeof b.key === "number" ? a.key - b.key : String(a.key).localeCompare(String(b.key), "en", { numeric: true })));
    body.append(...rows.map((each) => each.row));
  }));
}
