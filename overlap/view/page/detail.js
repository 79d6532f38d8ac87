// What is open: a sample, a group side by side, a problem over time, or the run.

import { ask, chip, count, el, fact, idOf, inOrder, number, plural, signed, svg, text, words } from "./dom.js";
import { sampleView } from "./sample.js";
import { groupOf, link, placeOf, problemOf } from "./state.js";

export async function detail(open, by, facts) {
  const [kind, ...place] = open.split(".");
  if (kind === "s") return sampleView(await ask(`sample/${place.join("/")}`), by);
  if (kind === "g") return groupView(await ask(`group/${place.join("/")}`), place);
  if (kind === "p") return problemView(await ask("problem", { id: place.join(".") }));
  return facts ? runView(facts) : el("p", { class: "soft" }, "…");
}

const verdictsOf = verdicts => inOrder(verdicts).map(([v, n]) => `${v} ${count(n)}`).join("  ");

function groupView(found, [step, group]) {
  const { row, samples } = found, name = row?.prompt_id ?? samples[0]?.prompt_id;
  const taught = row?.split === "heldout" ? "held-out" : words(row?.dropped) || (row?.learned ? "learned from" : "");
  const twins = new Map();
  for (const s of samples) if (s.program_sha256) twins.set(s.program_sha256, [...(twins.get(s.program_sha256) ?? []), s]);
  return el("div", {},
    el("h1", {}, `Group ${group} of step ${step}`),
    el("div", { class: "facts" }, el("a", { href: link({ open: problemOf(name) }) }, name),
      row && fact("solved", `${row.solved}/${row.samples}`), row && fact("reward", number(row.reward)), fact("", taught),
      row && fact("", verdictsOf(row.verdicts)), fact("kept as", samples[0]?.kept_as?.join(", "))),
    samples.length ? null : el("p", { class: "why" }, "The samples of this group were not kept: run.samples=all keeps those of every group."),
    samples.length ? el("div", { class: "scroll" }, groupTable(samples, twins)) : null,
    found.prompt === null ? null : el("details", { open: samples.length ? null : true }, el("summary", {}, "Prompt"), text(found.prompt)),
    samples.length ? el("h2", {}, "Side by side") : null,
    el("div", { class: "beside" }, ...samples.map(s => el("section", {},
      el("div", { class: "facts" }, chip(s.verdict), el("a", { href: link({ open: placeOf(s) }) }, idOf(s)), fact("reward", number(s.reward)), fact("", signed(s.advantage))),
      el("p", {}, s.why), text(s.source ?? s.answer, s.source ? "code" : "text")))));
}

function groupTable(samples, twins) {
  const shared = [...twins.values()].filter(same => same.length > 1);
  return el("table", {},
    el("tr", {}, ...["sample", "verdict"].map(n => el("th", {}, n)), el("th", { class: "n" }, "reward"), ...["advantage", "tokens", "tests"].map(n => el("th", { class: "n hide" }, n)),
      shared.length ? el("th", {}, "same program as") : null, el("th", {}, "why")),
    ...samples.map(s => el("tr", { class: "to", onclick: () => { location.hash = link({ open: placeOf(s) }); } },
      el("td", {}, el("a", { href: link({ open: placeOf(s) }) }, idOf(s))), el("td", {}, chip(s.verdict)), el("td", { class: "n" }, number(s.reward)),
      el("td", { class: "n hide" }, signed(s.advantage)), el("td", { class: "n hide" }, count(s.tokens) + (s.truncated ? "…" : "")),
      el("td", { class: "n hide" }, s.total === null ? "" : `${s.passed}/${s.total}`),
      shared.length ? el("td", {}, (twins.get(s.program_sha256) ?? []).filter(o => o !== s).map(idOf).join(" ")) : null,
      el("td", { class: "wide" }, s.why))));
}

function problemView(found) {
  const rows = found.groups, series = split => rows.filter(r => r.split === split && r.reward !== null).map(r => [r.step, r.solved / Math.max(1, r.samples)]);
  return el("div", {},
    el("h1", {}, found.prompt_id),
    el("div", { class: "facts" }, fact("", plural(rows.length, "group")), fact("solved", `${rows.reduce((n, r) => n + r.solved, 0)}/${rows.reduce((n, r) => n + r.samples, 0)}`)),
    el("h2", {}, "Share of samples solved by step"), chart({ train: series("train"), heldout: series("heldout") }),
    el("h2", {}, "Groups"),
    el("div", { class: "scroll" }, el("table", {},
      el("tr", {}, el("th", { class: "n" }, "step"), el("th", {}, "group"), ...["solved", "reward", "tokens", "cut off"].map(n => el("th", { class: "n" }, n)), el("th", {}, "verdicts"), el("th", {}, "taught")),
      ...rows.slice(-200).reverse().map(r => el("tr", {}, el("td", { class: "n" }, r.step), el("td", {}, el("a", { href: link({ open: groupOf(r) }) }, r.group)),
        el("td", { class: "n" }, `${r.solved}/${r.samples}`), el("td", { class: "n" }, number(r.reward)), el("td", { class: "n" }, count(r.tokens)), el("td", { class: "n" }, r.truncated || ""),
        el("td", {}, verdictsOf(r.verdicts)), el("td", {}, r.taught))))),
    el("p", {}, el("a", { href: link({ tab: "samples", problem: found.prompt_id, q: "", step: "", verdict: "", only: "", split: "" }) }, `list its ${plural(found.samples.length, "kept sample")}`)));
}

function runView(facts) {
  const kept = Object.entries(facts.kept_as).map(([n, c]) => `${n} ${count(c)}`).join(", ");
  return el("div", {},
    el("h1", {}, "This run"),
    el("div", { class: "facts" }, fact("steps", facts.last_step === null ? "none yet" : `${facts.first_step} to ${facts.last_step}`), fact("kept", `${count(facts.samples)} of ${plural(facts.sampled, "sample")}`),
      fact("groups", count(facts.groups)), fact("problems", count(facts.problems)), facts.failures ? fact("not scored", count(facts.failures)) : null, facts.weak ? fact("weak", count(facts.weak)) : null),
    el("h2", {}, "Mean reward by step"), chart(facts.course),
    el("h2", {}, "Verdicts of kept samples"),
    el("div", { class: "bar" }, ...inOrder(facts.verdicts).map(([v, n]) => el("a", { href: link({ tab: "samples", verdict: v }) }, chip(v === "none" ? null : v), ` ${count(n)}`))),
    Object.keys(facts.dropped).length ? [el("h2", {}, "Groups that taught nothing"),
      el("div", { class: "bar" }, el("a", { href: link({ tab: "groups", only: "dropped" }) }, Object.entries(facts.dropped).map(([r, n]) => `${words(r)} ${count(n)}`).join(" · ")))] : null,
    kept ? [el("h2", {}, "Why samples were kept"), el("div", { class: "bar" }, ...Object.entries(facts.kept_as).map(([n, c]) => el("a", { href: link({ tab: "samples", only: `kept:${n}` }) }, `${n} ${count(c)}`)))] : null,
    el("p", { class: "soft" }, "Start with ", el("a", { href: link({ tab: "samples", only: "failed" }) }, "what did not pass"), ", or press ? for the keys."));
}

// Lines of shares over steps, from 0 at the bottom to 1 at the top, or to the largest value above.
function chart(series) {
  const all = Object.values(series).flat();
  if (!all.length) return el("p", { class: "soft" }, "Nothing yet.");
  const W = 620, H = 190, steps = all.map(([step]) => step), low = Math.min(...steps), high = Math.max(...steps);
  const values = all.map(([, value]) => value), floor = Math.min(0, ...values), roof = Math.max(1, ...values);
  const x = step => high > low ? 34 + (W - 50) * (step - low) / (high - low) : W / 2;
  const y = value => H - 24 - (H - 40) * (value - floor) / (roof - floor);
  const made = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "curve over steps" });
  made.style.width = "100%"; made.style.maxWidth = `${W}px`;
  const label = (content, at) => { const t = svg("text", at); t.textContent = content; return t; };
  for (const value of [floor, (floor + roof) / 2, roof]) made.append(svg("line", { class: "axis", x1: 34, x2: W - 16, y1: y(value), y2: y(value) }), label(number(value, 2), { x: 2, y: y(value) + 4 }));
  made.append(label(String(low), { x: x(low) - 3, y: H - 6 }), high > low ? label(String(high), { x: x(high) - 14, y: H - 6 }) : "");
  for (const [name, points] of Object.entries(series)) {
    if (!points.length) continue;
    made.append(svg("polyline", { class: name, points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }));
    if (points.length < 60) for (const [step, value] of points) made.append(svg("circle", { class: name, cx: x(step), cy: y(value), r: 2.5 }));
  }
  const names = Object.entries(series).filter(([, points]) => points.length).map(([name]) => name);
  return el("div", {}, made, names.length > 1 ? el("div", { class: "facts" }, "solid: training", el("span", {}, "dashed: held-out")) : null);
}
