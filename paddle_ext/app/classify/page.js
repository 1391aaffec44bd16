"use strict";
// Everything is in the page already: this only hides what was not asked for.
const search = document.getElementById("search");
const onlyDoubtful = document.getElementById("doubtful");
const nothing = document.getElementById("nothing");
const sections = [...document.querySelectorAll("section.class")].map((section) => ({
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
