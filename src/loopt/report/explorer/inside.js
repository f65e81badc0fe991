"use strict";
// The model's view: where its heads look, and how its states move from loop to loop.

const unpacked = new Map();

// Attention is kept as the strongest few positions of each row: for step, layer, head and row, k positions and k weights.
function attention(which) {
  const key = view.example + "/" + which;
  if (!unpacked.has(key)) {
    const packed = look(which).attention;
    const bytes = (text) => {
      const letters = atob(text), array = new Uint8Array(letters.length);
      for (let i = 0; i < array.length; i++) array[i] = letters.charCodeAt(i);
      return array;
    };
    unpacked.set(key, packed && { k: packed.k, index: new Uint16Array(bytes(packed.index).buffer), weight: bytes(packed.weight) });
  }
  return unpacked.get(key);
}

function eachLook(head, row, visit) {
  const one = model(), kept = attention(view.model), rows = example().tokens.length;
  if (!kept) return;
  const from = ((((stepOf(view.model) - 1) * one.layers + view.layer) * one.heads + head) * rows + row) * kept.k;
  for (let i = from; i < from + kept.k; i++) if (kept.weight[i]) visit(kept.index[i], kept.weight[i] / 255);
}

// Where a position looks: [position, weight], of the chosen head, or of all of them on average.
function attentionFrom(row) {
  const heads = view.head >= 0 ? [view.head] : [...Array(model().heads).keys()], sum = new Map();
  for (const head of heads) eachLook(head, row, (to, weight) => sum.set(to, (sum.get(to) || 0) + weight / heads.length));
  return [...sum.entries()].sort((a, b) => b[1] - a[1]);
}

// The page's colors for canvases. They are kept: asking for them has the browser lay out the page first.
const colors = {};
function rgb(name) {
  if (!colors[name]) {
    const written = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    colors[name] = [1, 3, 5].map((i) => parseInt(written.slice(i, i + 2), 16));
  }
  return colors[name];
}

// A pixel for each pair of positions, drawn larger by the browser.
function drawMatrix(canvas, head) {
  const rows = example().tokens.length, context = canvas.getContext("2d");
  canvas.width = canvas.height = rows;
  const picture = context.createImageData(rows, rows), pixels = new Uint32Array(picture.data.buffer);
  const ground = rgb("soft"), full = rgb("looped"), frame = rgb("deep");
  const mixed = (to, weight) => {  // red in the lowest byte, opaque
    const [r, g, b] = ground.map((from, i) => Math.round(from + weight * (to[i] - from)));
    return (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  };
  const shades = [full, frame].map((to) => Array.from({ length: 256 }, (_, i) => mixed(to, Math.sqrt(i / 255))));
  pixels.fill(mixed(full, 0));
  pixels.fill(mixed(frame, 0.25), view.position * rows, (view.position + 1) * rows);
  for (let row = 0; row < rows; row++) {
    const shade = shades[row === view.position ? 1 : 0];
    eachLook(head, row, (to, weight) => { pixels[row * rows + to] = shade[Math.round(255 * weight)]; });
  }
  context.putImageData(picture, 0, 0);
}

function makeMatrix(head) {
  const canvas = el("canvas", { role: "img" }), rows = () => example().tokens.length;
  const at = (offset, size) => clamp(Math.floor((offset / size) * rows()), 0, rows() - 1);
  canvas.onclick = (event) => go({ head, position: at(event.offsetY, canvas.clientHeight) });
  canvas.onmousemove = (event) => {
    const row = at(event.offsetY, canvas.clientHeight), column = at(event.offsetX, canvas.clientWidth);
    let weight = 0;
    eachLook(head, row, (to, w) => { if (to === column) weight = w; });
    canvas.title = "from position " + row + " to " + column + ": " + percent(weight);
  };
  return el("figure", {}, canvas, el("figcaption"));
}

function strongest(head) {
  const found = [];
  eachLook(head, view.position, (to, weight) => found.push([to, weight]));
  found.sort((a, b) => b[1] - a[1]);
  return found.slice(0, 3).map(([to, weight]) => "position " + to + " " + percent(weight)).join(", ") || elsewhere();
}

// Where attention goes of which no position gets enough to be shown. A start token is no part of the example.
const elsewhere = () => (model().start ? "the start token" : "many, spread thinly");

function drawAttention() {
  const one = model(), kept = attention(view.model), box = $("matrices");
  $("noattention").hidden = Boolean(kept);
  $("layers").hidden = one.layers < 2;
  chooseFrom($("layers"), "layer ", Array.from({ length: one.layers }, (_, i) => String(i + 1)), view.layer, (i) => go({ layer: i }));
  chooseFrom($("heads"), "heads ", ["all", ...Array.from({ length: one.heads }, (_, i) => String(i + 1))], view.head + 1, (i) => go({ head: i - 1 }));
  box.hidden = !kept;
  if (!kept) return;
  $("kept").textContent = kept.k < example().tokens.length ? "Of each row the strongest " + kept.k + " are kept." : "";
  if (box.children.length !== one.heads) box.replaceChildren(...Array.from({ length: one.heads }, (_, head) => makeMatrix(head)));
  [...box.children].forEach((figure, head) => {
    const told = "head " + (head + 1) + ": from position " + view.position + " to " + strongest(head);
    figure.classList.toggle("chosen", head === view.head);
    figure.lastChild.textContent = told;
    figure.firstChild.setAttribute("aria-label", told);
    if (matricesSeen) drawMatrix(figure.firstChild, head);
  });
}

// Pixels are painted while they can be seen.
let matricesSeen = false;
function watchMatrices() {
  new IntersectionObserver((entries) => {
    matricesSeen = entries[entries.length - 1].isIntersecting;
    if (matricesSeen) drawAttention();
  }, { rootMargin: "200px" }).observe($("matrices"));
  window.addEventListener("beforeprint", () => { matricesSeen = true; drawAttention(); });
}

function chart(id, values, name, ends) {
  const w = 300, h = 150, left = 38, bottom = 22, step = stepOf(view.model), one = model();
  const [low, high] = ends || [0, Math.max(...values, 1e-9)];
  const x = (i) => left + ((i - 0.5) / values.length) * (w - left - 6), y = (v) => 8 + (1 - (v - low) / (high - low)) * (h - bottom - 8);
  const points = values.map((v, i) => [x(i + 1), y(clamp(v, low, high))]);
  const trained = x(Math.min(one.trained, values.length)) + (w - left - 6) / values.length / 2;
  $(id).replaceChildren(sv("svg", { viewBox: "0 0 " + w + " " + h, role: "img", "aria-label": name + " by " + one.by + ": " + values.map((v) => v.toFixed(2)).join(", ") },
    sv("rect", { x: trained, y: 8, width: Math.max(0, w - 6 - trained), height: h - bottom - 8, class: "beyond" }),
    ...[low, high].map((v) => sv("text", { x: left - 4, y: y(v) + 4, class: "small end" }, v.toFixed(1))),
    sv("line", { x1: left, x2: w - 6, y1: y(low), y2: y(low), class: "edge" }),
    sv("polyline", { points: points.map((p) => p.join(",")).join(" "), class: "curve" }),
    ...points.map(([px, py], i) => sv("circle", { cx: px, cy: py, r: i + 1 === step ? 5 : 2.5, class: i + 1 === step ? "dot now" : "dot" }, sv("title", {}, one.by + " " + (i + 1) + ": " + values[i].toFixed(3)))),
    ...points.filter((_, i) => values.length < 14 || i % 4 === 3).map(([px]) => sv("text", { x: px, y: h - 6, class: "small mid" }, String(Math.round((px - left) / (w - left - 6) * values.length + 0.5))))));
}

function drawMovement() {
  const one = look(), p = view.position, w = 300, h = 230, step = stepOf(view.model);
  chart("change", one.change.map((row) => row[p]), "size of the change", [0, Math.max(0.1, ...one.change.map((row) => row[p]))]);
  chart("cosine", one.cosine.map((row) => row[p]), "cosine with the state before", [Math.min(0, ...one.cosine.map((row) => row[p])), 1]);
  const path = one.orbit.map((row) => [row[2 * p], row[2 * p + 1]]), xs = path.map((q) => q[0]), ys = path.map((q) => q[1]);
  const span = Math.max(Math.max(...xs) - Math.min(...xs), (Math.max(...ys) - Math.min(...ys)) * (w / h), 1e-9);
  const middle = (values) => (Math.max(...values) + Math.min(...values)) / 2;
  const x = (v) => w / 2 + ((v - middle(xs)) / span) * (w - 44), y = (v) => h / 2 - ((v - middle(ys)) / span) * (w - 44);
  $("orbit").replaceChildren(sv("svg", { viewBox: "0 0 " + w + " " + h, role: "img", "aria-label": "The state's path in two dimensions: " + one.movement[p] },
    sv("polyline", { points: path.map(([a, b]) => x(a) + "," + y(b)).join(" "), class: "curve" }),
    ...path.map(([a, b], i) => sv("g", {}, sv("circle", { cx: x(a), cy: y(b), r: i === step ? 6 : 3, class: "dot" + (i === step ? " now" : "") + (i > model().trained ? " beyondtrained" : "") }), sv("text", { x: x(a) + 7, y: y(b) - 5, class: "small" }, String(i))))));
  $("moves").textContent = "The state at position " + p + " " + (one.movement[p].startsWith("still") ? "is " : one.movement[p].startsWith("settled") ? "has " : "") + one.movement[p] +
    ". The plane shows " + percent(one.variance[0] + one.variance[1]) + " of how all states of this example differ; 0 is the state before the first " + model().by + ".";
}

start();
