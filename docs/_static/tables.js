/* Names of columns for tables.css, which shows them beside the cells of wide tables on phones. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const names = [...table.querySelectorAll("th")].map((cell) => cell.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, i) => { if (i) cell.dataset.column = names[i] ?? ""; });
    }
  }
});
