"use strict";
document.documentElement.classList.add("js");

// Trajectories: a list of questions, one open card, one open system.
const filters = document.getElementById("filters");
if (filters) {
  const items = [...document.querySelectorAll("#list button[data-card]")];
  const cards = [...document.querySelectorAll(".card")];
  const texts = cards.map((card) => card.textContent.toLowerCase());
  const found = document.getElementById("found");
  let current = -1;

  const wanted = (name) => (filters.elements[name] ? filters.elements[name].value : "");
  const shown = () => items.filter((item) => !item.parentElement.hidden);

  function showSystem(system) {
    const card = cards[current];
    if (!card) return;
    const has = [...card.querySelectorAll(".view")].some((view) => view.dataset.system === system);
    const name = has ? system : card.querySelector(".view").dataset.system;
    for (const view of card.querySelectorAll(".view")) view.classList.toggle("open", view.dataset.system === name);
    for (const tab of card.querySelectorAll(".tabs button")) {
      tab.setAttribute("aria-selected", String(tab.dataset.system === name));
      tab.tabIndex = tab.dataset.system === name ? 0 : -1;
    }
  }

  function open(place) {
    current = place;
    cards.forEach((card, index) => card.classList.toggle("open", index === place));
    items.forEach((item) => item.setAttribute("aria-current", String(Number(item.dataset.card) === place)));
    document.querySelector(".detail").scrollTop = 0;
    showSystem(wanted("system"));
  }

  function apply() {
    const text = wanted("text").trim().toLowerCase();
    const system = wanted("system");
    for (const item of items) {
      const place = Number(item.dataset.card);
      const lamps = [...item.querySelectorAll(".lamp")];
      const lamp = lamps.find((one) => one.dataset.system === system);
      lamps.forEach((one) => one.classList.toggle("chosen", one === lamp));
      item.parentElement.hidden = !(
        (!wanted("outcome") || (lamp && lamp.dataset.outcome === wanted("outcome"))) &&
        (!wanted("kind") || item.dataset.kind === wanted("kind")) &&
        (!wanted("hops") || item.dataset.hops === wanted("hops")) &&
        (!text || texts[place].includes(text))
      );
    }
    const left = shown();
    document.getElementById("nothing").hidden = left.length > 0;
    found.textContent = `${left.length} of ${items.length} questions`;
    const stays = left.find((item) => Number(item.dataset.card) === current);
    open(stays ? current : left.length ? Number(left[0].dataset.card) : -1);
  }

  filters.addEventListener("input", apply);
  filters.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("clear").addEventListener("click", () => {
    const system = wanted("system");
    filters.reset();
    filters.elements.system.value = system;
    apply();
  });
  document.getElementById("list").addEventListener("click", (event) => {
    const item = event.target.closest("button[data-card]");
    if (item) open(Number(item.dataset.card));
  });
  document.getElementById("list").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const left = shown();
    const next = left[left.findIndex((item) => Number(item.dataset.card) === current) + step];
    if (next) {
      event.preventDefault();
      next.focus();
      open(Number(next.dataset.card));
    }
  });
  document.querySelector(".detail").addEventListener("click", (event) => {
    const tab = event.target.closest(".tabs button");
    if (tab) showSystem(tab.dataset.system);
  });
  document.querySelector(".detail").addEventListener("keydown", (event) => {
    const tab = event.target.closest(".tabs button");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!tab || !step) return;
    const tabs = [...tab.parentElement.children];
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    showSystem(next.dataset.system);
    next.focus();
  });
  apply();
}

// Charts: the point nearest to the pointer and its values.
const tip = document.getElementById("tip");
for (const figure of document.querySelectorAll(".chart")) {
  const svg = figure.querySelector("svg");
  const dots = [...svg.querySelectorAll(".dot")];
  const clear = () => {
    tip.hidden = true;
    dots.forEach((dot) => dot.classList.remove("on"));
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 320;
    const gap = (dot) => Math.abs(dot.cx.baseVal.value - at);
    const near = dots.reduce((best, dot) => (gap(dot) < gap(best) ? dot : best));
    dots.forEach((dot) => dot.classList.toggle("on", dot === near));
    tip.textContent = `${near.dataset.y}  (${figure.dataset.x} ${near.dataset.x})`;
    tip.hidden = false;
    const place = near.getBoundingClientRect();
    const left = Math.min(Math.max(8, place.left - tip.offsetWidth / 2), window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${left}px`;
    tip.style.top = `${place.top - tip.offsetHeight - 8}px`;
  });
  svg.addEventListener("pointerleave", clear);
  window.addEventListener("scroll", clear, { passive: true });
}
