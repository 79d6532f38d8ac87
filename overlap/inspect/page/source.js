// Where the data comes from, the page itself or its server; and the address, behind "#", which says what is shown of it.

const DATA = JSON.parse($("data").textContent);
let facts = null, samples = [], groups = [], found = null;

async function ask(path, given = {}) {
  if (DATA) return embedded(path, given);
  const query = new URLSearchParams(given);
  const answer = await fetch(`/api/${path}${query.size ? "?" + query : ""}`);
  const told = await answer.json().catch(() => ({ error: `answered ${answer.status}` }));
  if (!answer.ok) throw new Error(told.error ?? `answered ${answer.status}`);
  return told;
}

function embedded(path, given) {
  if (path === "run") return DATA.facts;
  if (path === "lists") return DATA;
  if (path === "search") return Object.entries(DATA.texts).filter(([, s]) => JSON.stringify(s).includes(JSON.stringify(given.q).slice(1, -1))).map(([place]) => place.split("/").map(Number));
  const sample = DATA.texts[path.replace("sample/", "")];
  if (!sample) throw new Error("This report does not hold that sample: overlap view shows all.");
  return sample;
}

// Rows of objects, of columns that hold numbers or places in a list of words.
function rowsOf({ count: total, columns }) {
  const read = Object.entries(columns).map(([name, c]) => [name, c.words ? at => c.words[c.at[at]] : at => c[at]]);
  return Array.from({ length: total }, (_, at) => Object.fromEntries(read.map(([name, value]) => [name, value(at)])));
}

// Reads what has changed since the last call; says whether anything has.
async function readOn() {
  const told = await ask("run", facts ? { revision: facts.revision } : {});
  if (!told.name) return false;
  const lists = await ask("lists");
  facts = told; samples = rowsOf(lists.samples); groups = rowsOf(lists.groups); found = null;
  const kept = new Set(samples.map(groupOf));
  for (const group of groups) group.kept = kept.has(groupOf(group));
  for (const s of samples) s.passed_all = s.verdict ? s.verdict === "AC" : s.reward > 0;
  return true;
}

const taught = g => g.split === "heldout" ? "held-out" : g.learned ? "trained on" : words(g.dropped) || "not trained on";

const KEEPS = {
  failed: { samples: s => !s.passed_all, groups: g => !g.solved }, failure: { samples: s => s.failure },
  dropped: { samples: s => s.dropped, groups: g => g.dropped }, weak: { samples: s => s.weak }, truncated: { samples: s => s.truncated },
};

function keeps(row, shown) {
  const { split, step, problem, verdict, only, tab } = shown;
  if ((split && row.split !== split) || (problem && row.prompt_id !== problem) || (step !== "" && String(row.step) !== step)) return false;
  if (verdict && !(row.verdicts ? verdict in row.verdicts : (row.verdict ?? "none") === verdict)) return false;
  if (only.startsWith("kept:")) return row.kept_as?.includes(only.slice(5)) ?? true;
  return KEEPS[only]?.[tab]?.(row) ?? true;
}

async function listOf(shown) {
  if (shown.tab === "problems") return problems().filter(p => p.prompt_id.includes(shown.q) && (!shown.split || p.split === shown.split));
  if (shown.tab === "groups") return groups.filter(g => keeps(g, shown) && (g.prompt_id.includes(shown.q) || g.dropped.includes(shown.q))).reverse();
  let rows = samples.filter(s => keeps(s, shown));
  if (shown.q) {
    if (found?.q !== shown.q) found = { q: shown.q, places: new Set((await ask("search", { q: shown.q })).map(place => `s.${place.join(".")}`)) };
    rows = rows.filter(s => found.places.has(placeOf(s)));
  }
  const sort = shown.sort || "-step", name = sort.replace("-", ""), way = sort.startsWith("-") ? -1 : 1;
  if (name === "step") return way < 0 ? rows.reverse() : rows;
  return rows.sort((a, b) => (known(a[name]) ? 0 : 1) - (known(b[name]) ? 0 : 1) || way * (a[name] - b[name]));
}

function problems() {
  const made = new Map();
  for (const g of groups) {
    const key = `${g.split} ${g.prompt_id}`, p = made.get(key) ?? { split: g.split, prompt_id: g.prompt_id, samples: 0, solved: 0, course: [] };
    p.samples += g.samples; p.solved += g.solved; p.course.push(g);
    made.set(key, p);
  }
  const rate = p => p.solved / Math.max(1, p.samples);
  return [...made.values()].sort((a, b) => rate(a) - rate(b) || a.prompt_id.localeCompare(b.prompt_id));
}

const NAMES = ["tab", "q", "split", "step", "problem", "verdict", "only", "sort", "open", "by"];

function state() {
  const given = new URLSearchParams(location.hash.slice(1));
  const shown = Object.fromEntries(NAMES.map(name => [name, given.get(name) ?? ""]));
  shown.tab ||= shown.open ? "samples" : "run";
  return shown;
}

function link(changes) {
  const next = Object.entries({ ...state(), ...changes }).filter(([name, value]) => value && !(name === "tab" && value === "run"));
  return "#" + new URLSearchParams(next);
}

// ``replace``: without a step that Back would return to, for what changes with each key.
function go(changes, replace = false) {
  const to = link(changes);
  if (to === (location.hash || "#")) return;
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = to;
}

const placeOf = s => `s.${s.step}.${s.group}.${s.sample}`;
const groupOf = g => `g.${g.step}.${g.group}`;
const problemOf = name => `p.${name}`;
