// The page: reads the address, shows the list and what is open, listens to keys, follows a run that goes on.

import { ask, count, el, plural } from "./dom.js";
import { detail } from "./detail.js";
import { List } from "./list.js";
import { kinds, ONLY, SORTS } from "./rows.js";
import { go, groupOf, link, placeOf, problemOf, state } from "./state.js";

const $ = id => document.getElementById(id);
const form = $("filters"), FIELDS = ["q", "split", "step", "problem", "verdict", "only", "sort"];
let facts = null, listed = "", opened = null;

const list = new List($("list"), {
  onOpen: data => go({ open: kind().place(data) }),
  onCount: total => { $("count").textContent = plural(total, state().tab.slice(0, -1)); },
  onFailed: error => { $("count").textContent = error.message; },
});
const kind = () => kinds(state())[state().tab] ?? kinds(state()).samples;

function options(select, choices, value) {
  const wanted = Object.entries(choices);
  if (value && !(value in choices)) wanted.push([value, value]);
  select.replaceChildren(...wanted.map(([name, label]) => el("option", { value: name }, label)));
  select.value = value;
}

function fillForm(shown) {
  const named = (all, names) => Object.fromEntries([["", all], ...names.map(name => [name, name])]);
  options(form.split, { "": "all", train: "training", heldout: "held-out" }, shown.split);
  options(form.verdict, named("all", Object.keys(facts?.verdicts ?? {})), shown.verdict);
  const kept = shown.tab === "samples" ? Object.fromEntries(Object.keys(facts?.kept_as ?? {}).map(n => [`kept:${n}`, `kept as ${n}`])) : {};
  options(form.only, { ...(ONLY[shown.tab] ?? ONLY.samples), ...kept }, shown.only);
  options(form.sort, SORTS[shown.tab] ?? SORTS.samples, shown.sort || Object.keys(SORTS[shown.tab] ?? SORTS.samples)[0]);
  for (const name of ["step", "problem", "verdict", "only", "sort"]) {
    const useless = shown.tab === "problems" || (form[name].matches("select") && form[name].options.length < 2);
    form[name].closest("label").hidden = useless;
  }
  for (const name of ["q", "step", "problem"]) if (document.activeElement !== form[name]) form[name].value = shown[name];
  for (const tab of document.querySelectorAll("nav a")) { tab.classList.toggle("here", tab.dataset.tab === shown.tab); tab.href = link({ tab: tab.dataset.tab, only: "", sort: "" }); }
}

async function showAll({ keep = false } = {}) {
  const shown = state(), asked = JSON.stringify([shown.tab, ...FIELDS.map(name => shown[name])]);
  document.body.classList.toggle("open", Boolean(shown.open));
  fillForm(shown);
  const work = [];
  if (asked !== listed || keep) { listed = asked; work.push(list.show(kind(), { keep })); }
  if (opened !== shown.open || (keep && !shown.open)) { opened = shown.open; work.push(showDetail(shown)); }
  await Promise.all(work);
  if (shown.open) list.mark(shown.open);
}

async function showDetail({ open, by }) {
  const place = $("detail");
  try {
    const made = await detail(open, by, facts);
    if (state().open !== open) return;
    place.replaceChildren(el("button", { id: "back", type: "button", onclick: () => go({ open: "" }) }, "‹ list"), made);
    place.scrollTop = 0;
  } catch (error) {
    place.replaceChildren(el("button", { id: "back", type: "button", onclick: () => go({ open: "" }) }, "‹ list"), el("p", { class: "problem-text" }, error.message));
  }
}

async function follow() {
  try {
    const found = await ask("run", facts ? { revision: facts.revision } : {});
    const changed = facts && found.revision !== facts.revision;
    facts = { ...facts, ...found };
    showState();
    if (changed) await showAll({ keep: true });
  } catch (error) {
    $("state").textContent = `no answer: is overlap view still running? (${error.message})`;
  }
}

function showState() {
  $("name").textContent = facts.name.split("/").slice(-2).join("/");
  $("name").title = facts.name;
  document.title = `${$("name").textContent} · overlap view`;
  $("state").replaceChildren(facts.live ? el("span", { class: "live" }, "● live ") : "", `${count(facts.samples)} of ${plural(facts.sampled, "sample")} kept`, facts.last_step === null ? "" : `, step ${facts.last_step}`);
}

function siblings(by) {
  const [, step, group, sample] = opened.split(".");
  const next = Number(sample) + by;
  if (next >= 0) ask(`sample/${step}/${group}/${next}`).then(() => go({ open: `s.${step}.${group}.${next}` }, true), () => {});
}

async function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") { if (typing) event.target.blur(); else if (opened) go({ open: "" }); return; }
  if (typing) { if (event.key === "Enter" && event.target.matches("input")) { event.preventDefault(); $("list").focus(); } return; }
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }, tabs = { 1: "samples", 2: "groups", 3: "problems" };
  const inDetail = event.key.startsWith("Arrow") && $("detail").contains(document.activeElement);
  if (event.key in moves && !inDetail) { event.preventDefault(); const data = await list.move(moves[event.key]); if (data && opened) go({ open: kind().place(data) }, true); }
  else if (event.key === "Enter" && list.selected && !event.target.matches("a, button, summary")) go({ open: kind().place(list.selected) });
  else if (event.key === "/") { event.preventDefault(); form.q.focus(); form.q.select(); }
  else if (event.key === "?") $("keys").showModal();
  else if (event.key in tabs) go({ tab: tabs[event.key], only: "", sort: "" });
  else if (opened?.startsWith("s.")) {
    if (event.key === "[" || event.key === "]") siblings(event.key === "]" ? 1 : -1);
    else if (event.key === "g") go({ open: opened.replace(/^s/, "g").replace(/\.\d+$/, "") });
    else if (event.key === "p") $("detail").querySelector(".facts a")?.click();
  }
}

let typing = 0;
form.addEventListener("input", event => {
  clearTimeout(typing);
  typing = setTimeout(() => go({ [event.target.name]: event.target.value.trim() }, true), event.target.matches("select") ? 0 : 200);
});
form.addEventListener("submit", event => event.preventDefault());
$("clear").addEventListener("click", () => { for (const name of ["q", "step", "problem"]) form[name].value = ""; go(Object.fromEntries(FIELDS.map(name => [name, ""]))); });
$("more").addEventListener("click", () => $("more").setAttribute("aria-expanded", String($("choices").classList.toggle("shown"))));
$("help").addEventListener("click", () => $("keys").showModal());
addEventListener("keydown", key);
addEventListener("hashchange", () => showAll());
document.addEventListener("visibilitychange", () => { if (!document.hidden) follow(); });
setInterval(() => { if (!document.hidden) follow(); }, 2000);

$("count").textContent = "reading the samples …";
showAll();
follow().then(() => { fillForm(state()); if (!state().open) showDetail(state()); });
