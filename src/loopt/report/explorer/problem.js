"use strict";
// The problem as people think of it, one drawing for each kind, and the tokens with what the model makes of them.

const LINE = 20, MOST_LETTERS = 9;

// What a probe reads at a position after a step: {label, right, sure}; null where there is none.
function reading(quantity, step, position) {
  const read = look().probe[quantity], truth = example().quantities[quantity];
  if (!read || !truth || truth[position] === null) return null;
  const scores = model().probes.filter((one) => one.quantity === quantity && one.step === step);
  const label = read[step][position];
  return { label, right: label === truth[position], sure: scores.length > 0 && scores[0].sure };
}

// The label in words; values of addition and i-GSM are numbers, all others tokens.
function readInWords(one) {
  const label = ["addition", "igsm"].includes(example().problem.kind) ? String(one.label) : word(one.label);
  return "reads " + label + (one.sure ? (one.right ? " ✓" : " ✗") : ", but this probe is often wrong");
}

function chain(position) {
  const problem = example().problem, stops = [position];
  while (stops.length <= problem.p && stops[stops.length - 1] >= 0) stops.push(problem.hop[stops[stops.length - 1]]);
  return stops;
}

function knownHops(step = stepOf(view.model)) {
  const known = [];
  for (let hop = 0; hop <= example().problem.p; hop++) {
    const one = reading("hop " + hop, step, view.position);
    known.push(Boolean(one && one.right && one.sure));
  }
  return known;
}

function knownInWords() {
  if (example().problem.kind !== "phop" || !model().probes.length) return "";
  const hops = knownHops().map((yes, hop) => (yes && hop ? hop : 0)).filter(Boolean);
  return hops.length ? "A probe reads " + hopsInWords(hops) + " of " + example().problem.p + " from its state." : "A probe reads no hop from its state yet.";
}

// "hops 1, 3 to 5 and 7"
function hopsInWords(hops) {
  const ranges = [];
  for (const hop of hops) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === hop - 1) last[1] = hop;
    else ranges.push([hop, hop]);
  }
  const told = ranges.flatMap(([from, to]) => (to - from < 2 ? [...new Set([from, to])] : [from + " to " + to]));
  return "hop" + (hops.length > 1 ? "s " : " ") + told.join(", ").replace(/, (?!.*, )/, " and ");
}

// After which loop each hop can first be read, in words: what the loops do.
function story() {
  const problem = example().problem, one = model();
  if (problem.kind !== "phop" || !one.probes.length) return "";
  const steps = Array.from({ length: one.trained }, (_, i) => ({ step: i + 1, known: knownHops(i + 1) })), by = {};
  for (let hop = 1; hop <= problem.p; hop++) {
    const first = steps.find((at) => at.known[hop]), when = first ? "after " + one.by + " " + first.step : "never";
    (by[when] = by[when] || []).push(hop);
  }
  const told = Object.entries(by).map(([when, hops]) => hopsInWords(hops) + " " + when), stays = look().stays[view.position];
  const though = by.never && stays ? ", though it answers rightly after " + one.by + " " + stays : "";
  return "At position " + view.position + " a probe first reads " + told.join(", ") + though + ".";
}

function drawProblem() {
  const draw = { phop: drawLadder, addition: drawSum, group: drawTree, igsm: drawGraph }[example().problem.kind];
  const drawn = draw && draw();
  if (!drawn) $("problem").replaceChildren();
  else if ($("problem").firstChild !== drawn) $("problem").replaceChildren(drawn);
  const hops = example().problem.kind === "phop" ? "Arcs above: the true hops, drawn solid once a linear probe reads from the model's state here where they land, which ● marks below. " : "";
  const carries = draw === drawSum ? "Carry, read: what a linear probe reads from the state where the digit below is said, · where it is often wrong. " : "";
  const read = !model().probes.length || !draw ? "" : hops || carries || "Filled and ●: a linear probe reads it rightly from the state at this position. ";
  $("legend").textContent = read + "In the row below the tokens: what the model would answer there now, ✓ right or ✗ wrong, the paler the less sure. Arcs below: where it looks from the chosen position, or from the one under the mouse.";
}

// Which hops can be read after which loop, at the chosen position. A step of the slider marks another row.
let ladder = { key: null };

function drawLadder() {
  if (!model().probes.length) return null;
  const key = [view.example, view.model, view.position].join("/");
  if (ladder.key !== key) ladder = { key, table: makeLadder() };
  [...ladder.table.rows].forEach((row, i) => row.classList.toggle("now", i === stepOf(view.model)));
  return ladder.table;
}

function makeLadder() {
  const problem = example().problem, stops = chain(view.position), hops = Array.from({ length: problem.p }, (_, i) => i + 1);
  const letter = (hop) => (stops[hop] >= 0 ? word(example().tokens[stops[hop]]) : "⊥");
  const head = el("tr", {}, el("th", {}, "can be read"), ...hops.map((hop) => el("th", { scope: "col" }, "hop " + hop)));
  const rows = Array.from({ length: model().steps }, (_, i) => {
    const known = knownHops(i + 1), step = i + 1;
    const cells = hops.map((hop) => {
      const one = reading("hop " + hop, step, view.position), wrong = one && one.sure && !one.right;
      return el("td", { class: (known[hop] ? "known" : "unknown") + " pick", title: one && readInWords(one) }, (known[hop] ? "● " : "○ ") + letter(hop), wrong ? el("small", {}, readInWords(one)) : null);
    });
    return el("tr", { class: step === model().trained + 1 ? "beyond" : "", onclick: () => go({ step }) }, el("th", { scope: "row" }, model().by + " " + step + (step > model().trained ? " +" : "")), ...cells);
  });
  return el("table", { class: "cells ladder" }, head, ...rows);
}

function answerAt(place) {
  if (place < 0) return { text: "", verdict: "" };
  const at = said(view.model, stepOf(view.model), place);
  return { text: shown(at.answer), verdict: at.verdict, sure: at.probabilities[0] };
}

function drawSum() {
  const problem = example().problem, width = problem.sum.length;
  const row = (name, cells, kind) => el("tr", { class: kind }, el("th", { scope: "row" }, name), ...cells);
  const pad = (cells, count) => [...Array(Math.max(0, width - count)).fill(0).map(() => el("td")), ...cells];
  const carries = problem.carries.map((carry) => el("td", { class: "muted" }, carry ? String(carry) : ""));
  const operands = problem.operands.map((places, i) => row(i ? "+" : "", pad(places.map((p) => el("td", { class: p === view.position ? "chosen" : "", "data-p": p, onclick: () => go({ position: p }) }, word(example().tokens[p]))), places.length)));
  const answers = problem.places.map((place) => {
    const at = answerAt(place);
    return el("td", { class: at.verdict + (place === view.position ? " chosen" : ""), onclick: () => place >= 0 && go({ position: place }) }, at.text, el("sup", {}, MARK[at.verdict]));
  });
  const read = model().probes.length ? [row("carry, read", problem.places.map(readCarry))] : [];
  return el("table", { class: "paper" }, row("carry", carries), ...read, ...operands, row("says", answers, "total"),
    row("right", problem.sum.map((digit) => el("td", {}, String(digit)))));
}

function readCarry(place) {
  const one = reading("carry into it", stepOf(view.model), place);
  if (!one || !one.sure) return el("td", { class: "muted", title: one ? readInWords(one) : null }, one ? "·" : "");
  const verdict = one.right ? "right" : "wrong";
  return el("td", { class: verdict }, String(one.label), el("sup", {}, MARK[verdict]));
}

function drawTree() {
  const levels = example().problem.levels, count = levels[0].length, cell = Math.max(72, ...levels.flat().map((span) => Math.max(9 * word(span[2]).length + 14, 6.5 * word(span[2]).length + 62)));
  const high = 74, picture = sv("svg", { width: count * cell, height: levels.length * high - 8, role: "img", "aria-label": "Tree of partial products" });
  const x = (span) => ((span[0] + span[1] + 1) / 2) * cell, y = (level) => (levels.length - 1 - level) * high + 24;
  levels.forEach((spans, level) => spans.forEach((span) => {
    if (level) levels[level - 1].filter((low) => low[0] >= span[0] && low[1] <= span[1]).forEach((low) =>
      picture.append(sv("line", { x1: x(span), y1: y(level) + 22, x2: x(low), y2: y(level - 1) - (level > 1 ? 22 : 14), class: "edge" })));
    const length = span[1] - span[0] + 1;
    const one = level && reading(span[0] === 0 ? "product so far" : "product of the last " + length, stepOf(view.model), span[1]);
    const known = !level || (one && one.right && one.sure), half = level ? 22 : 14;
    picture.append(sv("g", { class: "node" + (known ? " known" : ""), onclick: () => go({ position: span[1] }) },
      sv("rect", { x: x(span) - cell / 2 + 4, y: y(level) - half, width: cell - 8, height: 2 * half, rx: 6 }),
      sv("text", { x: x(span), y: y(level) + (level ? -3 : 5) }, (level && known ? "● " : "") + word(span[2])),
      one && one.sure ? sv("text", { x: x(span), y: y(level) + 14, class: "small " + (one.right ? "right" : "wrong") }, readInWords(one)) : null,
      one ? sv("title", {}, readInWords(one)) : null));
  }));
  return picture;
}

function drawGraph() {
  const nodes = example().problem.nodes, byDepth = {}, at = {};
  nodes.forEach((node) => (byDepth[node.depth] = byDepth[node.depth] || []).push(node));
  const depths = Object.keys(byDepth).map(Number).sort((a, b) => a - b), wide = Math.max(...depths.map((d) => byDepth[d].length));
  const w = 152, h = 74, picture = sv("svg", { width: wide * w + 8, height: depths.length * h, role: "img", "aria-label": "Which parameter is defined by which" });
  depths.forEach((depth, row) => byDepth[depth].forEach((node, i) => (at[node.name] = [(i + 0.5 + (wide - byDepth[depth].length) / 2) * w + 4, row * h + 30])));
  const rows = depths.map((depth) => byDepth[depth].map((node) => at[node.name])), taken = {};
  nodes.forEach((node) => node.uses.filter((used) => at[used]).forEach((used) =>
    picture.append(sv("path", { d: edge(at[used], at[node.name], rows, w, taken), class: "edge" + (node.needed ? " needed" : "") }))));
  nodes.forEach((node) => {
    const [x, y] = at[node.name], query = node.name === example().problem.query, told = toldOf(node, query);
    const group = sv("g", { class: "node" + (told.right ? " known" : "") + (query ? " query" : ""), onclick: () => node.place >= 0 && go({ position: node.place }) },
      sv("rect", { x: x - 70, y: y - 22, width: 140, height: 44, rx: 6 }), sv("text", { x, y: y - 5 }, node.name + (query ? "?" : "") + " = " + (told.right ? node.value + " ●" : "·")),
      sv("text", { x, y: y + 13, class: "small " + (told.text ? (told.right ? "right" : "wrong") : "") }, told.text ? told.text + (told.right ? " ✓" : " ✗, it is " + node.value) : node.needed ? "true value " + node.value : "not needed"));
    group.append(sv("title", {}, node.name + " := " + node.text));
    picture.append(group);
  });
  return picture;
}

// An edge from one parameter down to another; past the rows between, it goes through the nearest gap. Edges that share
// a gap keep apart.
function edge(from, to, rows, w, taken) {
  let [x, y] = [from[0], from[1] + 22], path = "M" + x + " " + y;
  const bend = (x2, y2) => { path += " C" + x + " " + (y + y2) / 2 + " " + x2 + " " + (y + y2) / 2 + " " + x2 + " " + y2; [x, y] = [x2, y2]; };
  rows.filter((row) => row[0][1] > from[1] && row[0][1] < to[1]).forEach((row) => {
    const middle = row[0][1], straight = from[0] + ((middle - from[1]) / (to[1] - from[1])) * (to[0] - from[0]);
    const gaps = [row[0][0] - w / 2, ...row.map(([center]) => center + w / 2)].sort((a, b) => Math.abs(a - straight) - Math.abs(b - straight));
    const key = gaps[0] + "/" + middle, count = taken[key] = (taken[key] || 0) + 1;
    bend(gaps[0] + [0, 3, -3][(count - 1) % 3], middle - 22);
    path += " V" + (y = middle + 22);
  });
  bend(to[0], to[1] - 22);
  return path;
}

// What is known of a parameter's value: at the question what the model answers, where it is defined what a probe reads.
function toldOf(node, query) {
  if (query) {
    const at = answerAt(node.place);
    return { text: "says " + at.text, right: at.verdict === "right" };
  }
  const read = node.place >= 0 && reading("value named here", stepOf(view.model), node.place);
  return read && read.sure ? { text: "reads " + read.label, right: read.right } : { text: "", right: false };
}

function arc(from, to, base, up, attributes) {
  const x1 = (from + 0.5) * cells.wide, x2 = (to + 0.5) * cells.wide, lift = Math.min(100, 16 + Math.abs(x2 - x1) / 3.2) * (up ? -1 : 1);
  return sv("path", { d: "M" + x1 + " " + base + " C" + x1 + " " + (base + lift * 1.33) + " " + x2 + " " + (base + lift * 1.33) + " " + x2 + " " + base, ...attributes });
}

// The tokens in a line: above them the true hops from the chosen position, below them what the model says, and where it
// looks. The cells are made once for each example, and then changed in place.
let cells = { key: null };
const short = (text) => (shown(text).length > MOST_LETTERS ? shown(text).slice(0, MOST_LETTERS - 1) + "…" : shown(text));

function makeStrip() {
  const one = example(), hops = one.problem.kind === "phop", top = hops ? 134 : 20, base = top + 3 * LINE + 6;
  const used = new Set([...one.tokens, ...one.looks.flatMap((seen) => seen.choices.flatMap((ids) => ids.filter((_, i) => i % DATA.top === 0)))]);
  const wide = Math.max(26, 10 + 8.5 * Math.max(...[...used].map((id) => short(word(id)).length)));
  const picture = sv("svg", { width: one.tokens.length * wide, height: base + 110, role: "img" }), overlay = sv("g"), looks = sv("g");
  const made = one.tokens.map((token, i) => {
    const x = (i + 0.5) * wide, box = sv("rect", { x: i * wide + 1, y: top + LINE + 6, width: wide - 2, height: LINE + 10, rx: 4 });
    const says = sv("text", { x, y: top + LINE + 21 }), mark = sv("text", { x, y: top + LINE + 33 }), title = sv("title");
    const group = sv("g", { "data-position": i, onclick: () => go({ position: i }), onmouseenter: () => drawLooks(i), onmouseleave: () => drawLooks(view.position) }, sv("rect", { x: i * wide + 1, y: top, width: wide - 2, height: LINE + 2, rx: 4 }),
      sv("text", { x, y: top + 16 }, short(word(token))), box, says, mark, title);
    picture.append(group);
    return { group, box, says, mark, title };
  });
  const ticks = one.tokens.map((_, i) => i).filter((i) => i % 5 === 0);
  picture.append(...ticks.map((i) => sv("text", { x: (i + 0.5) * wide, y: 11, class: "small tick" }, String(i))), overlay, looks);
  $("strip").replaceChildren(picture);
  const answers = one.problem.kind === "text" ? "expects" : "answers";
  const names = [["reads", top + 11], [answers, top + LINE + 21], ["looks at", base + 20], ...(hops ? [["true hops", top - 50]] : [])];
  $("rows").replaceChildren(...names.map(([name, y]) => el("span", { style: "top:" + y + "px" }, name)));
  cells = { key: one, position: null, made, overlay, looks, picture, top, base, wide };
}

function drawStrip() {
  const one = example(), step = stepOf(view.model), hops = one.problem.kind === "phop";
  if (cells.key !== one) makeStrip();
  const { top, overlay } = cells, stops = hops ? chain(view.position) : [view.position], known = hops ? knownHops() : [];
  cells.picture.setAttribute("aria-label", $("summary").textContent);
  cells.made.forEach((cell, i) => {
    const at = said(view.model, step, i), kind = "token" + (i === view.position ? " chosen" : "") + (stops.indexOf(i) > 0 ? " stop" : "");
    const told = "position " + i + ": reads " + shown(word(one.tokens[i])) + ", says " + spoken(at);
    if (cell.kind !== kind) cell.group.setAttribute("class", cell.kind = kind);
    if (cell.told === told && cell.verdict === at.verdict) return;
    Object.assign(cell, { told, verdict: at.verdict });
    cell.box.setAttribute("class", "says " + at.verdict);
    cell.box.style.fillOpacity = (0.25 + 0.75 * at.probabilities[0]).toFixed(2);
    if (cell.says.textContent !== short(at.answer)) cell.says.textContent = short(at.answer);
    cell.mark.setAttribute("class", "small " + at.verdict);
    if (cell.mark.textContent !== MARK[at.verdict]) cell.mark.textContent = MARK[at.verdict];
    cell.title.textContent = told;
  });
  const arcs = [], marks = [];
  if (hops) stops.slice(1).forEach((to, i) => {
    const hop = i + 1, yes = known[hop] ? " known" : "", x = (to + 0.5) * cells.wide;
    if (to < 0 || to === stops[i]) return;
    arcs.push(arc(stops[i], to, top - 2, true, { class: "hop" + yes }));
    marks.push(sv("g", { class: "hopmark" + yes, "data-hop": hop }, sv("circle", { cx: x, cy: top - 10, r: 8.5 }), sv("text", { x, y: top - 6 }, String(hop))));
  });
  overlay.replaceChildren(...arcs, ...marks);
  if (cells.position !== view.position) reveal($("strip"), (view.position - 1) * cells.wide, (view.position + 2) * cells.wide);
  cells.position = view.position;
  drawLooks(view.position);
}

// Where a position looks: the chosen one, or the one under the mouse.
function drawLooks(position) {
  const arcs = [], marks = [], y = cells.base;
  attentionFrom(position).forEach(([to, weight]) => {
    if (weight < 0.02) return;
    arcs.push(arc(position, to, y + 2, false, { class: "look", "stroke-width": (0.8 + 4 * weight).toFixed(2), "stroke-opacity": (0.3 + 0.7 * weight).toFixed(2) }));
    if (weight >= 0.1) marks.push(sv("text", { x: (to + 0.5) * cells.wide, y: y + 13, class: "small looked" }, Math.round(100 * weight) + "%"));
  });
  if (!arcs.length && attention(view.model)) marks.push(sv("text", { x: (position + 0.5) * cells.wide, y: y + 13, class: "small looked end" }, elsewhere()));
  cells.looks.replaceChildren(...arcs, ...marks);
}
