// The lists and how a row of each looks; a group side by side, and a problem over time.

const cell = (content, kind = "", name = null) => el("span", { class: kind, "data-name": content === "" ? null : name, title: typeof content === "string" ? content : null }, content);
const heads = (kind, ...names) => () => el("div", { class: `row heads ${kind}`, "aria-hidden": "true" }, ...names.map(([name, sort]) => cell(name, sort)));

const SORTS = {
  samples: { "-step": "newest first", step: "oldest first", reward: "lowest reward", "-reward": "highest reward", "-advantage": "highest advantage",
    advantage: "lowest advantage", "-tokens": "longest", tokens: "shortest", "-verify_s": "slowest to judge", "-generate_s": "slowest to sample" },
  groups: { "": "newest first" }, problems: { "": "hardest first" },
};
const ONLY = {
  samples: { "": "all", failed: "not passed", failure: "not scored", dropped: "not trained on", weak: "weak", truncated: "cut off" },
  groups: { "": "all", dropped: "not trained on", failed: "never solved" }, problems: { "": "all" },
};

const KINDS = {
  samples: {
    key: placeOf, noun: "sample",
    heads: heads("sample", ["verdict", ""], ["problem", ""], ["sample", ""], ["reward", "n"], ["advant.", "n"], ["tests", "n"], ["tokens", "n"]),
    row: s => el("a", { class: "row sample", href: link({ open: placeOf(s) }) }, cell(chip(s.verdict), "first"), cell(s.prompt_id, "wide"),
      cell(`${s.split === "heldout" ? "eval " : ""}${s.step}·${idOf(s)}`, "soft"), cell(number(s.reward), "n", "reward"), cell(signed(s.advantage), "n hide"),
      cell(s.total === null ? "" : `${s.passed}/${s.total}`, "n soft", "tests"), cell(count(s.tokens) + (s.truncated ? "…" : ""), "n soft", "tokens")),
  },
  groups: {
    key: groupOf, noun: "group",
    heads: heads("group", ["step", ""], ["problem", ""], ["solved", "n"], ["reward", "n"], ["verdicts", ""], ["trained on", ""]),
    row: g => el("a", { class: "row group", href: link({ open: groupOf(g) }) }, cell(String(g.step), "first soft", "step"), cell(g.prompt_id, "wide"),
      cell(`${g.solved}/${g.samples}`, "n", "solved"), cell(number(g.reward), "n", "reward"), cell(verdictsOf(g.verdicts), "soft"), cell(taught(g) + (g.kept ? "" : ", not kept"), "soft")),
  },
  problems: {
    key: p => problemOf(p.prompt_id), noun: "problem",
    heads: heads("problem", ["problem", ""], ["split", ""], ["solved", "n"], ["reward over steps", ""]),
    row: p => el("a", { class: "row problem", href: link({ open: problemOf(p.prompt_id) }) }, cell(p.prompt_id, "wide"), cell(p.split, "soft"), cell(`${p.solved}/${p.samples}`, "n", "solved"), spark(p.course)),
  },
};

const verdictsOf = verdicts => inOrder(verdicts).map(([v, n]) => `${v} ${count(n)}`).join("  ");

function spark(course) {
  const rewards = course.map(g => g.reward).filter(known), made = svg("svg", { width: 130, height: 22, viewBox: "0 0 130 22", "aria-hidden": "true" });
  if (!rewards.length) return made;
  const x = index => rewards.length > 1 ? 3 + 124 * index / (rewards.length - 1) : 65, y = reward => 19 - 16 * Math.max(0, Math.min(1, reward));
  return add(made, [svg("polyline", { class: "l", stroke: colour(0), points: rewards.map((reward, index) => `${x(index)},${y(reward)}`).join(" ") }),
    svg("circle", { fill: colour(0), cx: x(rewards.length - 1), cy: y(rewards.at(-1)), r: 2 })]);
}

async function groupView([step, group]) {
  const row = groups.find(g => `${g.step}.${g.group}` === `${step}.${group}`), mates = samples.filter(s => `${s.step}.${s.group}` === `${step}.${group}`);
  if (!row) throw new Error(`step ${step} has no group ${group}`);
  const whole = await Promise.all(mates.map(s => ask(`sample/${s.step}/${s.group}/${s.sample}`)));
  const twins = Object.groupBy(whole.filter(s => s.program_sha256), s => s.program_sha256);
  return el("div", {},
    el("h1", {}, `Group ${group} of step ${step}`),
    el("div", { class: "facts" }, el("a", { href: link({ open: problemOf(row.prompt_id) }) }, row.prompt_id), fact("solved", `${row.solved}/${row.samples}`), fact("reward", number(row.reward)),
      fact("", taught(row)), fact("", verdictsOf(row.verdicts)), fact("kept as", mates[0]?.kept_as.join(", "))),
    whole.length ? [groupTable(whole, twins), folded("Prompt", () => pre(whole[0].prompt)), el("h2", {}, "Side by side"), el("div", { class: "beside" }, whole.map(besides))]
      : el("p", { class: "why" }, DATA ? "This report does not hold the samples of this group: overlap view shows all that are kept." : "The samples of this group were not kept: run.samples=all keeps those of every group."));
}

const besides = s => el("section", {},
  el("div", { class: "facts" }, chip(s.verdict), el("a", { href: link({ open: placeOf(s) }) }, idOf(s)), fact("reward", number(s.reward)), fact("", known(s.advantage) ? signed(s.advantage) : "")),
  el("p", {}, s.why), pre(s.program?.source ?? s.answer, s.program ? "code" : "text"));

function groupTable(whole, twins) {
  const shared = Object.values(twins).some(same => same.length > 1), hide = content => el("td", { class: "n hide" }, content);
  const heading = ["sample", "verdict", "reward", ...["advantage", "tokens", "tests"].map(n => el("th", { class: "n hide" }, n)), ...(shared ? ["same program as"] : []), "why"];
  return table(heading, whole.map(s => [el("a", { href: link({ open: placeOf(s) }) }, idOf(s)), chip(s.verdict), el("td", { class: "n" }, number(s.reward)), hide(signed(s.advantage)),
    hide(count(s.tokens) + (s.truncated ? "…" : "")), hide(s.total === null ? "" : `${s.passed}/${s.total}`),
    ...(shared ? [(twins[s.program_sha256] ?? []).filter(o => o !== s).map(idOf).join(" ")] : []), el("td", { class: "wide" }, s.why)]), ["reward"]);
}

function problemView(name) {
  const rows = groups.filter(g => g.prompt_id === name), own = samples.filter(s => s.prompt_id === name);
  if (!rows.length) throw new Error(`problem ${name} is none of this run's`);
  const line = (split, at) => { const gs = rows.filter(g => g.split === split); return { name: split === "train" ? "training" : "held-out", colour: at, xs: gs.map(g => g.step), values: gs.map(g => g.solved / Math.max(1, g.samples)) }; };
  const lines = [line("train", 0), line("heldout", 2)].filter(l => l.xs.length), numbers = ["step", "solved", "reward", "tokens", "cut off"];
  return el("div", {},
    el("h1", {}, name),
    el("div", { class: "facts" }, fact("", plural(rows.length, "group")), fact("solved", `${sum(rows.map(g => g.solved))}/${sum(rows.map(g => g.samples))}`)),
    el("div", { class: "tiles one" }, chartTile({ title: "Solved", unit: "share of a group", lines, marks: [], share: true, zero: true }, [])),
    el("h2", {}, "Groups"),
    table(["step", "group", "solved", "reward", "tokens", "cut off", "verdicts", "trained on"], rows.slice(-200).reverse().map(g => [el("td", { class: "n" }, g.step), el("a", { href: link({ open: groupOf(g) }) }, g.group),
      ...[`${g.solved}/${g.samples}`, number(g.reward), count(g.tokens), g.truncated || ""].map(n => el("td", { class: "n" }, n)), verdictsOf(g.verdicts), taught(g)]), numbers),
    el("p", {}, el("a", { href: link({ tab: "samples", problem: name, q: "", step: "", verdict: "", only: "", split: "" }) }, `list its ${plural(own.length, "kept sample")}`)));
}
