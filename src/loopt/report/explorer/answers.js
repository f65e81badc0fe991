"use strict";
// What the model would answer after each loop at every position, the models side by side, and what probes read.

function drawGrid() {
  const key = view.example + "/" + view.model, table = $("grid"), one = example();
  if (table.dataset.key !== key) {
    const head = el("tr", {}, el("th", { scope: "row" }, "reads"), ...one.tokens.map((token, i) => el("th", { scope: "col" }, el("small", {}, String(i)), shown(word(token)))));
    const rows = look().choices.map((_, i) => {
      const cells = one.tokens.map((_, p) => {
        const at = said(view.model, i + 1, p);
        return el("td", { class: at.verdict, "data-p": p, title: spoken(at) + "; entropy " + at.entropy.toFixed(2) + " nats" }, shown(at.answer) + MARK[at.verdict]);
      });
      const name = model().by + " " + (i + 1) + (i + 1 > model().trained ? " +" : "");
      return el("tr", { "data-step": i + 1 }, el("th", { scope: "row" }, name), ...cells);
    });
    const right = el("tr", {}, el("th", { scope: "row" }, one.problem.kind === "text" ? "next" : "right"), ...one.right.map((id) => el("td", {}, shown(word(id)) === "␣" ? "" : word(id))));
    table.replaceChildren(head, ...rows, right);
    table.dataset.key = key;
    table.onclick = (event) => {
      const cell = event.target.closest("td[data-p]");
      if (cell) go({ position: Number(cell.dataset.p), step: Number(cell.parentNode.dataset.step) });
    };
    table.dataset.position = "";
  }
  table.querySelectorAll(".now, .chosen").forEach((node) => node.classList.remove("now", "chosen"));
  const row = table.rows[stepOf(view.model)];
  row.classList.add("now");
  const chosen = row.cells[view.position + 1];
  chosen.classList.add("chosen");
  if (table.dataset.position !== String(view.position)) reveal($("gridbox"), chosen.offsetLeft - row.cells[0].offsetWidth, chosen.offsetLeft + chosen.offsetWidth);
  table.dataset.position = view.position;
  const at = said(view.model, stepOf(view.model), view.position);
  $("tops").replaceChildren(...at.choices.map((id, k) => el("li", {}, el("span", { class: "bar", style: "width:" + (6 * at.probabilities[k]).toFixed(2) + "rem" }), " “" + shown(word(id)) + "” " + percent(at.probabilities[k]))));
}

function drawSides() {
  const one = example(), p = view.position, asked = one.right.map((id, i) => (id >= 0 ? i : -1)).filter((i) => i >= 0);
  const cells = DATA.models.map((entry, which) => {
    const step = stepOf(which), rights = asked.filter((i) => said(which, step, i).verdict === "right").length;
    const line = Array.from({ length: entry.steps }, (_, i) => {
      const at = said(which, i + 1, p);
      return el("td", { class: at.verdict + (i + 1 === step ? " chosen" : ""), title: percent(at.probabilities[0]), onclick: () => go({ model: which, step: i + 1 }) }, shown(at.answer) + MARK[at.verdict]);
    });
    const told = (asked.length > 1 ? rights + " of " + asked.length + " right" : "");
    return el("tr", {}, el("th", { scope: "row", title: entry.note }, entry.name, el("small", {}, told)), ...line);
  });
  const most = Math.max(...DATA.models.map((entry) => entry.steps));
  $("sides").replaceChildren(el("tr", {}, el("th", {}, "after"), ...Array.from({ length: most }, (_, i) => el("th", {}, String(i + 1)))), ...cells);
  $("sidesat").textContent = "At position " + p + (one.right[p] >= 0 ? ", where “" + shown(word(one.right[p])) + "” is right" : "") + ":";
}

function drawProbes() {
  const scores = model().probes, names = [...new Set(scores.map((one) => one.quantity))];
  $("probesbox").hidden = !names.length;
  if (!names.length) return;
  if ($("probes").dataset.model !== String(view.model)) makeProbes(scores, names);
  [...$("probes").rows[0].cells].forEach((cell) => cell.classList.toggle("chosen", cell.dataset.step === String(stepOf(view.model))));
}

function makeProbes(scores, names) {
  const steps = [...new Set(scores.map((one) => one.step))];
  const head = el("tr", {}, el("th", {}, "after " + model().by), ...steps.map((step) => el("th", { "data-step": step }, step ? String(step) : "none")), el("th", {}, "most frequent"), el("th", {}, "control"));
  const rows = names.map((name) => {
    const of = scores.filter((one) => one.quantity === name), most = Math.max(...of.map((one) => one.control));
    return el("tr", {}, el("th", { scope: "row" }, name), ...of.map((one) => el("td", { style: "--share:" + Math.round(100 * one.accuracy) + "%", class: one.sure ? "share sure" : "share", title: "control task " + percent(one.control) }, Math.round(100 * one.accuracy) + (one.sure ? "●" : ""))), el("td", { class: "muted" }, String(Math.round(100 * of[0].baseline))), el("td", { class: "muted" }, "≤ " + Math.round(100 * most)));
  });
  $("probes").replaceChildren(head, ...rows);
  $("probes").dataset.model = view.model;
}
