"use strict";
(() => {
  const articles = [...document.querySelectorAll("article")];
  // The matches of each sentence, such as "m3": a missed entity of type number 3.
  const keys = articles.map((article) => article.dataset.k.split(" ").filter(Boolean));
  const type = document.getElementById("type");
  const outcomes = [...document.querySelectorAll("#filter input")];
  const status = document.getElementById("status");
  let wrong = []; // indices of shown sentences with an error that matches the filter
  let current = -1;

  function filter() {
    const chosen = new Set(outcomes.filter((box) => box.checked).map((box) => box.value));
    const all = type.value === "" && chosen.size === outcomes.length;
    let shown = 0;
    wrong = [];
    articles.forEach((article, index) => {
      const matching = keys[index].filter(
        (key) => chosen.has(key[0]) && (type.value === "" || key.slice(1) === type.value),
      );
      article.hidden = !all && matching.length === 0;
      if (!article.hidden) shown += 1;
      if (matching.some((key) => key[0] !== "c")) wrong.push(index);
    });
    status.textContent = `${shown} shown, ${wrong.length} with errors`;
  }

  function jump(step) {
    if (wrong.length === 0) return;
    const target = step > 0 ? wrong.find((i) => i > current) : wrong.findLast((i) => i < current);
    const index = target ?? wrong.at(step > 0 ? 0 : -1); // wrap around
    articles[index].scrollIntoView({ block: "start" });
    articles[index].focus({ preventScroll: true });
    status.textContent = `error ${wrong.indexOf(index) + 1} of ${wrong.length}`;
  }

  document.addEventListener("focusin", (event) => {
    const article = event.target.closest("article");
    if (article) current = articles.indexOf(article);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), select")) return;
    if (event.key === "n") jump(1);
    if (event.key === "p") jump(-1);
  });
  document.getElementById("filter").addEventListener("change", filter);
  document.getElementById("filter").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("next").addEventListener("click", () => jump(1));
  document.getElementById("previous").addEventListener("click", () => jump(-1));
  document.getElementById("filter").hidden = false;
  document.getElementById("jump").hidden = false;
  filter();
})();
