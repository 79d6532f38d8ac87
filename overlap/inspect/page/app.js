// Reads the address, shows the list and what is open, listens to keys, follows a run that goes on.

const form = $("filters"), FIELDS = ["q", "split", "step", "problem", "verdict", "only", "sort"];
let listedOf = "", opened = null;
const list = new List($("list"), { onOpen: data => go({ open: kind().key(data) }) });
const kind = () => KINDS[state().tab] ?? KINDS.samples;

function options(select, choices, value) {
  const wanted = Object.entries(choices);
  if (value && !(value in choices)) wanted.push([value, value]);
  select.replaceChildren(...wanted.map(([name, text]) => el("option", { value: name }, text)));
  select.value = value;
}

function fillForm(shown) {
  const verdicts = Object.keys(tally(samples, s => s.verdict ?? "none")), kept = Object.keys(shown.tab === "samples" ? tally(samples, s => s.kept_as) : {});
  const sorts = SORTS[shown.tab] ?? SORTS.samples;
  options(form.split, { "": "all", train: "training", heldout: "held-out" }, shown.split);
  options(form.verdict, { "": "all", ...Object.fromEntries(verdicts.map(name => [name, name])) }, shown.verdict);
  options(form.only, { ...(ONLY[shown.tab] ?? ONLY.samples), ...Object.fromEntries(kept.map(n => [`kept:${n}`, `kept as ${n}`])) }, shown.only);
  options(form.sort, sorts, shown.sort || Object.keys(sorts)[0]);
  for (const name of ["step", "problem", "verdict", "only", "sort"]) {
    form[name].closest("label").hidden = shown.tab === "problems" || (form[name].matches("select") && form[name].options.length < 2);
  }
  for (const name of ["q", "step", "problem"]) if (document.activeElement !== form[name]) form[name].value = shown[name];
}

async function showAll({ keep = false } = {}) {
  if (!facts) return;
  const shown = state(), listed = JSON.stringify([shown.tab, ...FIELDS.map(name => shown[name])]), one = shown.tab === "run" && !shown.open;
  document.body.classList.toggle("open", Boolean(shown.open));
  document.body.classList.toggle("one", one);
  for (const tab of document.querySelectorAll("nav a")) {
    tab.classList.toggle("here", tab.dataset.tab === shown.tab);
    tab.href = link({ tab: tab.dataset.tab, only: "", sort: "", open: "" });
  }
  if (!one && (listed !== listedOf || keep)) {
    listedOf = listed;
    fillForm(shown);
    await listing(shown, keep);
  }
  const open = one ? "run" : shown.open;
  if (opened !== open || (keep && one)) { opened = open; await showDetail(shown, one); }
  if (shown.open) list.mark(shown.open);
}

async function listing(shown, keep) {
  try {
    const rows = await listOf(shown);
    if (JSON.stringify(state()) !== JSON.stringify(shown)) return;
    list.show(kind(), rows, { keep });
    $("count").textContent = plural(rows.length, kind().noun) + (DATA && shown.tab === "samples" ? ` of ${count(DATA.kept)}` : "");
  } catch (error) { $("count").textContent = error.message; }
}

async function showDetail(shown, one) {
  const place = $("detail"), back = el("button", { id: "back", type: "button", onclick: () => go({ open: "" }) }, "‹ list");
  const unfolded = [...place.querySelectorAll("details")].map(each => each.open), same = one && place.querySelector("#run");
  try {
    const made = one ? runView() : shown.open ? await detail(shown) : soft("Open a row to see it here: j and k move, Enter opens.");
    if (opened !== (one ? "run" : state().open)) return;
    place.replaceChildren(back, made);
    if (same) place.querySelectorAll("details").forEach((each, at) => { each.open = unfolded[at] ?? false; });
    else place.scrollTop = 0;
  } catch (error) { place.replaceChildren(back, el("p", { class: "problem-text" }, error.message)); }
}

async function detail({ open, by }) {
  const [what, ...place] = open.split(".");
  if (what === "s") return sampleView(await ask(`sample/${place.join("/")}`), by);
  return what === "g" ? groupView(place) : problemView(place.join("."));
}

async function follow() {
  try {
    const first = !facts;
    if (!await readOn()) return;
    showState();
    await showAll({ keep: !first });
  } catch (error) { $("state").textContent = `no answer: is overlap view still running? (${error.message})`; }
}

function showState() {
  $("name").textContent = facts.name;
  $("name").title = facts.path;
  document.title = `${facts.name} · overlap`;
  $("state").replaceChildren(facts.live ? el("span", { class: "live" }, "● live ") : "", `${plural(facts.steps, "step")}, ${facts.state}`);
}

function siblings(by) {
  const [, step, group, sample] = opened.split("."), next = `s.${step}.${group}.${Number(sample) + by}`;
  if (samples.some(s => placeOf(s) === next)) go({ open: next }, true);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open || DATA?.compared) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") { if (typing) event.target.blur(); else if (state().open) go({ open: "" }); return; }
  if (typing) { if (event.key === "Enter" && event.target.matches("input")) { event.preventDefault(); $("list").focus(); } return; }
  const moves = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }, tabs = { 0: "run", 1: "samples", 2: "groups", 3: "problems" }, one = state().tab === "run";
  const scrolls = event.key.startsWith("Arrow") && (one || $("detail").contains(document.activeElement));
  if (event.key in moves && !scrolls && !one) { event.preventDefault(); const data = list.select(list.at + moves[event.key]); if (data && state().open) go({ open: kind().key(data) }, true); }
  else if (event.key === "Enter" && !one && list.items[list.at] && !event.target.matches("a, button, summary")) go({ open: kind().key(list.items[list.at]) });
  else if (event.key === "/") { event.preventDefault(); if (one) go({ tab: "samples" }); form.q.focus(); form.q.select(); }
  else if (event.key === "?") $("keys").showModal();
  else if (event.key in tabs) go({ tab: tabs[event.key], only: "", sort: "", open: "" });
  else if (opened?.startsWith("s.")) {
    if (event.key === "[" || event.key === "]") siblings(event.key === "]" ? 1 : -1);
    else if (event.key === "g") go({ open: opened.replace(/^s/, "g").replace(/\.\d+$/, "") });
    else if (event.key === "p") $("detail").querySelector(".facts a")?.click();
  }
}

function begin() {
  if (DATA?.compared) {
    document.body.classList.add("one", "compared");
    $("detail").replaceChildren(comparisonView(DATA.compared));
    return;
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
  addEventListener("keydown", pressed);
  addEventListener("hashchange", () => showAll());
  if (!DATA) {
    document.addEventListener("visibilitychange", () => { if (!document.hidden) follow(); });
    setInterval(() => { if (!document.hidden) follow(); }, 2000);
  }
  follow();
}

begin();
