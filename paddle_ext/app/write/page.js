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
    let found = false;
    for (const sample of samples) {
      const check = !onlyDoubtful.checked || sample.matches(".doubtful, .strange, .suspect");
      const fits = check && (title.includes(wanted) || textOf(sample).includes(wanted));
      sample.hidden = !fits;
      found = found || fits;
    }
    for (const group of groups) group.hidden = group.querySelector(".sample:not([hidden])") === null;
    section.hidden = !found && (wanted !== "" || onlyDoubtful.checked);
    any = any || found;
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
const before = new Map(data.corrections.map(([name, label, of]) => [JSON.stringify([name, of]), label]));
const corrected = new Map(before); // label by the name of the sample and of its data
let exported = true;

function key(sample) {
  const { name, of } = sample.dataset;
  return JSON.stringify([name, of === "labelled" ? data.labelled : data.new]);
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
    image.src = picture.src;
    image.alt = sample.dataset.name;
  }
  document.getElementById("look-text").textContent = sample.querySelector(".who").textContent;
  document.getElementById("look-said").textContent = said(sample);
  chosen.value = corrected.get(key(sample)) ?? sample.dataset.label;
  undo.disabled = !corrected.has(key(sample));
  if (!look.open) look.showModal();
  chosen.select();
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
    const [name, of] = JSON.parse(own);
    return [name, label, of].map(cell).join(",");
  });
  return ["name,label,data", ...lines, ""].join("\r\n");
}

exporting.addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([corrections()], { type: "text/csv" }));
  link.download = "corrected.csv";
  link.click();
  URL.revokeObjectURL(link.href);
  exported = true;
  document.getElementById("how").hidden = false;
});
window.addEventListener("beforeunload", (event) => {
  if (!exported) event.preventDefault();
});
if (corrected.size) everyone.forEach(mark);
for (const label of corrected.values()) classes.add(label);
count();
