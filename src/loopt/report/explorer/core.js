"use strict";
// The page's state, its controls and its address. What it shows was computed by loopt; nothing is fetched, but for what
// the user types where a loopt server has written the page.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
const view = { example: 0, model: 0, step: 1, position: 0, head: -1, layer: 0 };
let playing = null, addressing = null, opened = false;
let wanted = null;  // {input, position}: what the address asks for that no example here is

function make(space, tag, attributes, children) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) if (child !== null) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const sv = (tag, attributes, ...children) => make(SVG, tag, attributes, children);

const example = () => DATA.examples[view.example];
const model = (which = view.model) => DATA.models[which];
const look = (which = view.model) => example().looks[which];
const stepOf = (which) => Math.min(view.step, model(which).steps);
const word = (id) => (id < 0 ? "" : example().words[id]);
const shown = (text) => (text.trim() === "" ? "␣" : text);
const percent = (p) => (p > 0.9995 ? "100%" : p < 0.0995 ? (100 * p).toFixed(1) + "%" : Math.round(100 * p) + "%");
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// What a model says at a position after a step: its first choices with their probabilities, the entropy, right or not.
function said(which, step, position) {
  const one = look(which);
  const from = position * DATA.top;
  const choices = one.choices[step - 1].slice(from, from + DATA.top);
  const probabilities = one.probabilities[step - 1].slice(from, from + DATA.top);
  const right = example().right[position];
  const verdict = right < 0 ? "" : choices[0] === right ? "right" : "wrong";
  return { choices, probabilities, entropy: one.entropy[step - 1][position], verdict, answer: word(choices[0]) };
}
const spoken = (at) => at.choices.map((id, k) => shown(word(id)) + " " + percent(at.probabilities[k])).join(", ");
const MARK = { right: "✓", wrong: "✗", "": "" };

function stepName(which, step) {
  const one = model(which);
  return one.by + " " + step + (step > one.trained ? ", beyond the " + one.trained + " it was trained with" : " of " + one.trained);
}

function summary() {
  const p = view.position, one = model(), s = stepOf(view.model), at = said(view.model, s, p);
  const parts = ["After " + stepName(view.model, s) + ", " + one.name + " answers “" + shown(at.answer) + "” at position " + p +
    " (" + percent(at.probabilities[0]) + " sure, entropy " + at.entropy.toFixed(2) + " nats)"];
  const truth = example().problem.kind === "text" ? "the text goes on with “" : "right is “";
  if (at.verdict) parts[0] += at.verdict === "right" ? ", which is right ✓." : "; " + truth + shown(word(example().right[p])) + "” ✗.";
  else parts[0] += ".";
  const first = look().first[p], stays = look().stays[p];
  if (at.verdict) {
    const lost = look().lost[p], late = look().late[p];
    const when = (lost === stays + 1 ? "after " : "from ") + one.by + " " + stays + (lost > stays + 1 ? " to " + (lost - 1) : lost ? "" : " on");
    const then = lost ? "; run on, it is wrong again." : ".";
    if (!first) parts.push("It is never right here within the " + (one.trained > 1 ? one.trained + " " + one.by + "s" : "one " + one.by) + " it was trained with" + (late ? "; run on, it is first right after " + one.by + " " + late + "." : "."));
    else if (stays === first) parts.push("It is right " + when + then);
    else parts.push("It is first right after " + one.by + " " + first + (stays ? ", and again " + when + then : ", and does not stay right."));
  }
  const told = knownInWords();
  if (told) parts.push(told);
  return parts.join(" ");
}

function render() {
  const one = model();
  view.step = clamp(view.step, 1, Math.max(...DATA.models.map((m) => m.steps)));
  view.position = clamp(view.position, 0, example().tokens.length - 1);
  view.layer = clamp(view.layer, 0, one.layers - 1);
  view.head = clamp(view.head, -1, one.heads - 1);
  $("example").value = view.example;
  $("step").value = view.step;
  $("step").setAttribute("aria-valuetext", stepName(view.model, stepOf(view.model)));
  $("stepname").textContent = stepName(view.model, stepOf(view.model));
  $("position").value = view.position;
  chooseFrom($("models"), "", DATA.models.map((m) => m.name), view.model, (i) => go({ model: i }));
  $("made").textContent = one.name + ": " + [one.made, one.note].filter(Boolean).join("; ") + ".";
  $("summary").textContent = summary();
  $("story").textContent = story();
  drawProblem(); drawStrip();
  if (opened) drawBelow();
  clearTimeout(addressing);
  addressing = setTimeout(keepAddress, 100);  // once the slider rests: browsers take few changes of an address a second
}

// Scrolls a box sideways, no further than needed for what lies between two places in it to be seen.
function reveal(box, left, right) {
  box.scrollLeft = clamp(box.scrollLeft, right - box.clientWidth, left);
}

function drawBelow() { drawGrid(); drawSides(); drawAttention(); drawMovement(); drawProbes(); }

function keepAddress() {
  const input = wanted ? wanted.input : example().typed;
  const keep = new URLSearchParams(Object.entries(view).map(([k, v]) => [k, String(v)]));
  if (wanted) keep.delete("position");
  if (wanted && wanted.position !== undefined) keep.set("position", wanted.position);
  if (input) keep.set("input", input);
  history.replaceState(null, "", "#" + keep);
}

function go(changes) { Object.assign(view, changes); render(); }

// Shows what an address asks for. What it wants run is shown once the server has answered; a file has no server.
function followAddress(address) {
  const written = new URLSearchParams(new URL(address).hash.slice(1)), input = written.get("input"), asked = {};
  for (const key of Object.keys(view)) {
    const value = parseInt(written.get(key), 10);
    if (Number.isInteger(value)) asked[key] = value;
  }
  const known = DATA.examples.findIndex((one) => one.typed === input);
  if (input && known < 0) wanted = { input, position: asked.position };
  else forget();
  asked.example = wanted ? 0 : input ? known : clamp("example" in asked ? asked.example : view.example, 0, DATA.examples.length - 1);
  if (wanted || (!("position" in asked) && asked.example !== view.example)) asked.position = DATA.examples[asked.example].ask;
  asked.model = clamp("model" in asked ? asked.model : view.model, 0, DATA.models.length - 1);
  Object.assign(view, asked);
  if (!wanted) return;
  $("typed").value = input;
  if (DATA.serve) think(input);
  else $("said").textContent = "This page is a file and cannot run the input that its address names: loopt thoughts --serve can.";
}

function forget() { wanted = null; $("said").textContent = ""; }

function play() {
  if (playing) { clearInterval(playing); playing = null; $("play").textContent = "▶ play"; return; }
  $("play").textContent = "⏸ stop";
  if (view.step >= model().steps) view.step = 0;
  const tick = () => (view.step < model().steps ? go({ step: view.step + 1 }) : play());
  playing = setInterval(tick, 900);
  tick();
}

const KEYS = {
  ArrowLeft: () => go({ step: view.step - 1 }), ArrowRight: () => go({ step: view.step + 1 }), " ": play,
  ",": () => go({ position: view.position - 1 }), ".": () => go({ position: view.position + 1 }),
  m: () => go({ model: (view.model + 1) % DATA.models.length }),
  e: () => chooseExample((view.example + 1) % DATA.examples.length),
  h: () => go({ head: ((view.head + 2) % (model().heads + 1)) - 1 }),
};

function chooseExample(which) {
  forget();
  go({ example: which, position: DATA.examples[which].ask });
}

function listExamples() {
  $("example").replaceChildren(...DATA.examples.map((one, i) => el("option", { value: i }, one.title)));
}

// A row of buttons of which one is pressed; they stay the same elements, so that the focus stays where it is.
function chooseFrom(box, label, names, pressed, pick) {
  if (box.childElementCount !== names.length) box.replaceChildren(label, ...names.map((name, i) => el("button", { type: "button", onclick: () => pick(i) }, name)));
  [...box.children].forEach((button, i) => button.setAttribute("aria-pressed", String(i === pressed)));
}

async function think(text) {
  $("said").textContent = "thinking …";
  try {
    const reply = await fetch("think", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ input: text }) });
    const answer = await reply.json();
    if (!reply.ok) { $("said").textContent = answer.error; return; }
    DATA.examples.push({ ...answer, typed: text, title: "typed: " + text.slice(0, 24) });
    const position = wanted && wanted.input === text ? wanted.position : undefined;
    forget();
    listExamples();
    go({ example: DATA.examples.length - 1, position: position === undefined ? answer.ask : position });
  } catch (error) { $("said").textContent = "no answer from the server: " + error; }
}

function start() {
  $("step").max = Math.max(...DATA.models.map((one) => one.steps));
  $("step").addEventListener("input", () => go({ step: Number($("step").value) }));
  $("position").addEventListener("input", () => go({ position: Number($("position").value) || 0 }));
  $("example").addEventListener("change", () => chooseExample(Number($("example").value)));
  $("play").addEventListener("click", play);
  $("back").addEventListener("click", () => go({ step: view.step - 1 }));
  $("on").addEventListener("click", () => go({ step: view.step + 1 }));
  $("sidesbox").hidden = DATA.models.length < 2;
  if (DATA.serve) {
    $("typing").hidden = false;
    $("typing").addEventListener("submit", (event) => { event.preventDefault(); think($("typed").value); });
  }
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, select, textarea"), slides = field === $("step");
    const busy = (field && !slides) || (slides && event.key.startsWith("Arrow")) || (event.key === " " && event.target.closest("button"));
    if (busy || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const name of Object.keys(colors)) delete colors[name]; render(); });
  // The event's own address: keepAddress may have written another one before the event came.
  window.addEventListener("hashchange", (event) => { followAddress(event.newURL); render(); });
  view.position = DATA.examples[0].ask;
  listExamples();
  followAddress(location.href);
  render();
  // What opens the page is painted before the large tables below it are made.
  requestAnimationFrame(() => setTimeout(() => {
    opened = true;
    drawBelow();
    watchMatrices();
    document.body.dataset.ready = "yes";
  }));
}
