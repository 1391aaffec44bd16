"use strict";
// The page already contains everything: this filters the samples, enlarges one, and keeps corrected
// labels until they are exported.
const data = JSON.parse(document.getElementById("data").textContent);
const search = document.getElementById("search");
const onlyDoubtful = document.getElementById("doubtful");
const nothing = document.getElementById("nothing");
const sections = [...document.querySelectorAll("section.class")].map((section) => ({
  section,
  title: section.dataset.name.toLowerCase(),
  groups: [...section.querySelectorAll(".group")],
  samples: [...section.querySelectorAll(".sample")],
}));
const texts = new Map(); // of samples, once they have been searched

function textOf(sample) {
  if (!texts.has(sample)) texts.set(sample, sample.textContent.toLowerCase());
  return texts.get(sample);
}

function show() {
  const wanted = search.value.trim().toLowerCase();
  let any = false;
  for (const { section, title, groups, samples } of sections) {
    let visible = false;
    for (const sample of samples) {
      const check = !onlyDoubtful.checked || sample.matches(".doubtful, .strange, .suspect, .suggested");
      const fits = check && (title.includes(wanted) || textOf(sample).includes(wanted));
      sample.hidden = !fits;
      visible = visible || fits;
    }
    for (const group of groups) group.hidden = group.querySelector(".sample:not([hidden])") === null;
    section.hidden = !visible && (wanted !== "" || onlyDoubtful.checked);
    any = any || visible;
  }
  nothing.hidden = any;
}

let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(show, 120);
});
onlyDoubtful.addEventListener("change", show);
for (const link of document.querySelectorAll("a[href^='#']")) {
  link.addEventListener("click", () => {
    search.value = "";
    onlyDoubtful.checked = false;
    show();
  });
}
for (const button of document.querySelectorAll(".all")) {
  button.addEventListener("click", () => {
    button.previousElementSibling.classList.remove("few");
    button.hidden = true;
  });
}

// --- corrected labels ---------------------------------------------------------------------------

const everyone = [...document.querySelectorAll(".sample")];
const exporting = document.getElementById("export");
const classes = new Set([...data.classes, "unknown"]);
const before = new Map(data.corrections.map(([name, label, ...more]) => [JSON.stringify([name, ...more]), label]));
// The label by the name of the sample, of its data, and by its digest. The browser keeps what was
// corrected on this page until it is opened again, where it is allowed to keep anything.
const place = `paddle_ext ${data.run}`;
let [exported, corrected] = kept();

function kept() {
  try {
    const [done, labels] = JSON.parse(localStorage.getItem(place));
    return [done, new Map(labels)];
  } catch {
    return [true, new Map(before)];
  }
}

function remember() {
  try {
    localStorage.setItem(place, JSON.stringify([exported, [...corrected]]));
  } catch {} // the question before the page is closed remains
}

function key(sample) {
  const { name, of, digest } = sample.dataset;
  return JSON.stringify([name, of === "labelled" ? data.labelled : data.new, digest]);
}

function mark(sample) {
  const label = corrected.get(key(sample));
  sample.classList.toggle("corrected", Boolean(label));
  sample.querySelector(".mine")?.remove();
  if (!label) return;
  const mine = document.createElement("span");
  mine.className = "mine";
  mine.textContent = label === sample.dataset.label ? `correct: ${label}` : `changed to ${label}`;
  sample.lastElementChild.append(mine);
}

function keep(sample, label) {
  const own = key(sample);
  if (label) corrected.set(own, label);
  else corrected.delete(own);
  exported = false;
  remember();
  for (const other of everyone) {
    if (other.dataset.name === sample.dataset.name && key(other) === own) mark(other);
  }
  count();
}

function count() {
  const all = corrected.size;
  const fresh = [...corrected].filter(([own, label]) => before.get(own) !== label).length;
  const withdrawn = [...before.keys()].filter((own) => !corrected.has(own)).length;
  const changes = fresh + withdrawn;
  exporting.disabled = all + withdrawn === 0;
  exporting.textContent =
    all === 0 && withdrawn === 0
      ? "Export corrected labels"
      : `Export ${all} corrected label${all === 1 ? "" : "s"}` +
        (before.size && changes ? ` (${changes} changed)` : "");
}

// The class that a name was probably meant to be, if any.
function near(label) {
  const small = label.toLowerCase();
  const most = Math.max(1, Math.floor(small.length / 3));
  let best = null;
  let least = most + 1;
  for (const name of classes) {
    if (Math.abs(name.length - label.length) >= least) continue;
    const far = distance(small, name.toLowerCase());
    if (far < least) [best, least] = [name, far];
  }
  return best;
}

// How many letters are missing, superfluous, wrong or swapped.
function distance(one, two) {
  const rows = [Array.from({ length: two.length + 1 }, (_, place) => place)];
  for (let i = 1; i <= one.length; i++) {
    rows.push([i]);
    for (let j = 1; j <= two.length; j++) {
      const wrong = rows[i - 1][j - 1] + (one[i - 1] !== two[j - 1]);
      rows[i].push(Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, wrong));
      if (i > 1 && j > 1 && one[i - 1] === two[j - 2] && one[i - 2] === two[j - 1]) {
        rows[i][j] = Math.min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[one.length][two.length];
}

const asking = document.getElementById("ask");
const askNear = document.getElementById("ask-near");
const askNew = document.getElementById("ask-new");
let answered = () => {};

// Calls `then` with a label: this one, if it is a class or is to become one.
function ask(label, then) {
  if (!label) return;
  if (classes.has(label)) return then(label);
  const meant = near(label);
  const question = meant ? `, or did you mean '${meant}'?` : "?";
  document.getElementById("ask-text").textContent = data.named
    ? `'${label}' is not among the names of the classes${meant ? `: did you mean '${meant}'?` : "."}`
    : `New class '${label}'${question}`;
  askNear.hidden = meant === null;
  askNear.textContent = `Use '${meant}'`;
  askNear.dataset.label = meant ?? "";
  askNew.hidden = data.named;
  askNew.textContent = `New class '${label}'`;
  askNew.dataset.label = label;
  answered = then;
  asking.showModal();
}

for (const button of [askNear, askNew]) {
  button.addEventListener("click", () => {
    const { label } = button.dataset;
    if (!classes.has(label)) {
      classes.add(label);
      const option = document.createElement("option");
      option.value = label;
      document.getElementById("classes").append(option);
    }
    asking.close();
    answered(label);
  });
}
document.getElementById("ask-back").addEventListener("click", () => asking.close());

// Enter in a field. The same key press must not also reply to the question that it may open.
function onEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    act();
  });
}

for (const naming of document.querySelectorAll(".naming")) {
  const input = naming.querySelector("input");
  let last; // the name that the group had before; labels of single samples stay
  const label = () =>
    ask(input.value.trim(), (name) => {
      input.value = name;
      for (const sample of naming.closest(".group").querySelectorAll(".sample")) {
        if ([undefined, last].includes(corrected.get(key(sample)))) keep(sample, name);
      }
      last = name;
    });
  naming.querySelector("button").addEventListener("click", label);
  onEnter(input, label);
}

// --- one sample ---------------------------------------------------------------------------------

const look = document.getElementById("look");
const image = document.getElementById("look-image");
const chosen = document.getElementById("look-class");
const undo = document.getElementById("look-undo");
const likeliest = document.getElementById("look-likeliest");
let current = 0;

function said(sample) {
  const why = sample.querySelector(".why")?.textContent;
  if (sample.dataset.of) {
    const note = sample.classList.contains("suspect") ? sample.lastElementChild.firstChild : null;
    return note ? sample.lastElementChild.textContent : `labelled: ${sample.dataset.label}`;
  }
  const sure = sample.querySelector(".sure")?.textContent;
  return sure ? `predicted: ${sample.dataset.label}, ${sure}${why ? `; ${why}` : ""}` : why;
}

function open(index) {
  current = index;
  const sample = everyone[index];
  const picture = sample.querySelector("img");
  image.hidden = picture === null;
  if (picture) {
    image.src = sample.dataset.file;
    image.alt = sample.dataset.name;
  }
  offer(sample);
  document.getElementById("look-text").textContent = sample.querySelector(".who").textContent;
  document.getElementById("look-said").textContent = said(sample);
  chosen.value = corrected.get(key(sample)) ?? sample.dataset.label;
  undo.disabled = !corrected.has(key(sample));
  if (!look.open) look.showModal();
  look.focus();
}

// A file that is gone, or of a format that the browser does not know, is shown as on its tile.
image.addEventListener("error", () => {
  const { src } = everyone[current].querySelector("img");
  if (image.src !== src) image.src = src;
});

// The likeliest classes of a sample, as buttons with numbers, which are keys as well.
function offer(sample) {
  const names = sample.dataset.likeliest.split(" ").filter(Boolean).map((k) => data.classes[k]);
  const own = sample.dataset.of ? [sample.dataset.label] : [];
  const buttons = [...new Set([...names, ...own])].map((name, place) => {
    const button = document.createElement("button");
    button.type = "button";
    const digit = document.createElement("kbd");
    digit.textContent = place + 1;
    button.append(digit, ` ${name}`);
    button.addEventListener("click", () => save(name));
    return button;
  });
  likeliest.replaceChildren(...buttons);
}

function step(by) {
  for (let index = current + by; index >= 0 && index < everyone.length; index += by) {
    if (everyone[index].offsetParent !== null) return open(index);
  }
}

function save(label) {
  keep(everyone[current], label);
  undo.disabled = false;
  step(1);
}

const main = document.querySelector("main");
main.addEventListener("click", (event) => {
  const sample = event.target.closest(".sample");
  if (sample) open(everyone.indexOf(sample));
});
main.addEventListener("keydown", (event) => {
  if (!event.target.matches(".sample") || (event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  open(everyone.indexOf(event.target));
});
look.addEventListener("close", () => everyone[current].focus());
document.getElementById("look-close").addEventListener("click", () => look.close());
document.getElementById("look-back").addEventListener("click", () => step(-1));
document.getElementById("look-next").addEventListener("click", () => step(1));
document.getElementById("look-save").addEventListener("click", () => ask(chosen.value.trim(), save));
document.getElementById("look-unknown").addEventListener("click", () => save("unknown"));
const keys = { u: "look-unknown", n: "look-next", ArrowRight: "look-next", b: "look-back", ArrowLeft: "look-back" };
look.addEventListener("keydown", (event) => {
  if (event.target === chosen || event.ctrlKey || event.altKey || event.metaKey) return;
  const pressed = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const button = likeliest.children[Number(pressed) - 1] ?? document.getElementById(keys[pressed]);
  if (!button && pressed !== "c") return;
  event.preventDefault();
  if (button) button.click();
  else chosen.select();
});
onEnter(chosen, () => document.getElementById("look-save").click());
undo.addEventListener("click", () => {
  keep(everyone[current], "");
  open(current);
});

// --- the file for the next round ----------------------------------------------------------------

// A spreadsheet would run a cell that begins like a formula; classify takes the sign off again.
function cell(text) {
  const number = /^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$/.test(text);
  const safe = number ? text : text.replace(/(^|[;\n\r])(?='*[=+\-@\t\r＝＋－＠])/g, "$1'");
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

// All corrections, old and new; those that were withdrawn have no label.
function corrections() {
  const all = new Map([...[...before.keys()].map((own) => [own, ""]), ...corrected]);
  const lines = [...all].map(([own, label]) => {
    const [name, ...more] = JSON.parse(own);
    return [name, label, ...more].map(cell).join(",");
  });
  return [data.header.join(","), ...lines, ""].join("\r\n");
}

exporting.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([corrections()], { type: "text/csv" }));
  link.download = "corrected.csv";
  link.click();
  URL.revokeObjectURL(link.href);
  exported = true;
  remember();
  document.getElementById("how").hidden = false;
});
window.addEventListener("beforeunload", (event) => {
  if (!exported) event.preventDefault();
});
if (corrected.size) everyone.forEach(mark);
for (const label of corrected.values()) classes.add(label);
count();
