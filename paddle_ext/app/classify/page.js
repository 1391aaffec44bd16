"use strict";
// The page already contains everything: this filters the samples, enlarges one, and keeps corrected
// labels until they are exported.
const search = document.getElementById("search");
const onlyDoubtful = document.getElementById("doubtful");
const nothing = document.getElementById("nothing");
const sections = [...document.querySelectorAll("section.class:not(#suspects)")].map((section) => ({
  section,
  title: section.dataset.name.toLowerCase(),
  samples: [...section.querySelectorAll(".sample")].map((sample) => ({
    sample,
    text: sample.textContent.toLowerCase(),
    doubtful: sample.classList.contains("doubtful"),
  })),
}));

function show() {
  const wanted = search.value.trim().toLowerCase();
  let any = false;
  for (const { section, title, samples } of sections) {
    let found = false;
    for (const { sample, text, doubtful } of samples) {
      const fits = (title.includes(wanted) || text.includes(wanted)) && (doubtful || !onlyDoubtful.checked);
      sample.hidden = !fits;
      found = found || fits;
    }
    section.hidden = !found;
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
for (const link of document.querySelectorAll(".bars a")) {
  link.addEventListener("click", () => {
    search.value = "";
    onlyDoubtful.checked = false;
    show();
  });
}

// --- one sample ---------------------------------------------------------------------------------

const look = document.getElementById("look");
const image = document.getElementById("look-image");
const chosen = document.getElementById("look-class");
const undo = document.getElementById("look-undo");
const exporting = document.getElementById("export");
const everyone = [...document.querySelectorAll(".sample")];
const corrected = new Map(); // label by the name of the sample
let current = 0;
let exported = true;

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
  const sure = sample.querySelector(".sure").textContent;
  document.getElementById("look-said").textContent = `predicted: ${sample.dataset.label}, ${sure}`;
  chosen.value = corrected.get(sample.dataset.name) ?? sample.dataset.label;
  undo.disabled = !corrected.has(sample.dataset.name);
  if (!look.open) look.showModal();
  chosen.select();
}

function step(by) {
  for (let index = current + by; index >= 0 && index < everyone.length; index += by) {
    if (everyone[index].offsetParent !== null) return open(index);
  }
}

function keep(label) {
  const { name } = everyone[current].dataset;
  if (label) corrected.set(name, label);
  else corrected.delete(name);
  exported = corrected.size === 0;
  for (const sample of everyone) {
    if (sample.dataset.name !== name) continue;
    sample.classList.toggle("corrected", Boolean(label));
    sample.querySelector(".mine")?.remove();
    if (!label) continue;
    const mine = document.createElement("span");
    mine.className = "mine";
    mine.textContent = label === sample.dataset.label ? `correct: ${label}` : `changed to ${label}`;
    sample.lastElementChild.append(mine);
  }
  exporting.disabled = corrected.size === 0;
  const count = `${corrected.size} corrected label${corrected.size === 1 ? "" : "s"}`;
  exporting.textContent = corrected.size ? `Export ${count}` : "Export corrected labels";
}

for (const [index, sample] of everyone.entries()) {
  sample.addEventListener("click", () => open(index));
  sample.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open(index);
  });
}
document.getElementById("look-close").addEventListener("click", () => look.close());
document.getElementById("look-back").addEventListener("click", () => step(-1));
document.getElementById("look-next").addEventListener("click", () => step(1));
document.getElementById("look-save").addEventListener("click", () => {
  if (!chosen.value.trim()) return;
  keep(chosen.value.trim());
  undo.disabled = false;
  step(1);
});
chosen.addEventListener("keydown", (event) => {
  if (event.key === "Enter") document.getElementById("look-save").click();
});
undo.addEventListener("click", () => {
  keep("");
  open(current);
});

// --- the file for the next round ----------------------------------------------------------------

// A spreadsheet would run a cell that begins like a formula; classify takes the sign off again.
function cell(text) {
  const number = /^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$/.test(text);
  const safe = /^'*[=+\-@\t\r＝＋－＠]/.test(text) && !number ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function corrections() {
  const lines = [...corrected].map(([name, label]) => `${cell(name)},${cell(label)}`);
  return ["name,label", ...lines, ""].join("\r\n");
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
