// The run: what it reached, what it warns of, its curves, and where to go on; what is looked at more seldom is folded.

function runView() {
  const f = facts, charts = f.charts, more = charts.more.length;
  return el("div", { id: "run" },
    el("div", { class: "facts" }, fact("", f.policy), f.at ? el("span", {}, f.at) : null),
    f.cards.length ? el("div", { class: "cards" }, f.cards.map(card)) : soft("No step has ended yet."),
    f.notes.map(note => soft(note)),
    warningsView(f.warnings),
    charts.first.length ? [el("h2", {}, "Curves"), el("div", { class: "tiles" }, charts.first.map(chart => chartTile(chart, charts.xs)))] : null,
    charts.xs.length > 24 ? soft("Strong lines are running means, faint ones the steps themselves; docs/metrics.md says what each is.") : null,
    charts.zero.length ? soft(`0 in every step: ${charts.zero.join(", ")}.`) : null,
    more ? folded(plural(more, "more chart"), () => el("div", { class: "tiles" }, charts.more.map(chart => chartTile(chart, charts.xs)))) : null,
    f.heldout ? folded("Held-out problems before and after", () => dumbbells(f.heldout)) : null,
    groups.some(g => g.split === "train") ? folded("Pass rate by problem and step", passRateMap) : null,
    folded("Configuration", settingsView), folded("Command, machine, versions", machineView),
    samplesView(f));
}

const card = ([name, value, note]) => el("div", { class: "card" }, el("span", {}, name), el("b", {}, value), note ? el("small", {}, note) : null);

function warningsView(warnings) {
  if (!facts.steps) return null;
  const box = w => el("div", { class: "warn" }, el("p", {}, el("b", {}, `${capital(w.text)}.`)), el("p", {}, `${capital(w.way_out)}.`),
    el("small", {}, `${w.kind} · docs/look.md`));
  return [el("h2", {}, "Warnings"), warnings.length ? warnings.map(box) : soft("None: all checks of docs/look.md passed.")];
}

function tally(rows, of) {
  const counts = {};
  for (const row of rows) for (const name of [of(row)].flat()) if (name) counts[name] = (counts[name] ?? 0) + 1;
  return counts;
}

function samplesView(f) {
  const kept = Object.entries(tally(samples, s => s.kept_as)), dropped = Object.entries(tally(groups, g => g.dropped));
  const numbers = (rows, to) => el("div", { class: "bar" }, rows.map(([name, n]) => el("a", { href: link(to(name)) }, `${words(name)} ${count(n)}`)));
  const whole = DATA ? `${count(samples.length)} of the ${plural(DATA.kept, "kept sample")} are in this report` : `${count(samples.length)} of ${plural(sum(groups.map(g => g.samples)), "sample")} are kept`;
  return [el("h2", {}, "Samples"),
    soft(`${whole}. Start with `, el("a", { href: link({ tab: "samples", only: "failed" }) }, "what did not pass"), ", or press ? for the keys."),
    el("div", { class: "bar" }, inOrder(tally(samples, s => s.verdict ?? "none")).map(([v, n]) => el("a", { href: link({ tab: "samples", verdict: v }) }, chip(v === "none" ? null : v), ` ${count(n)}`))),
    kept.length ? [el("h3", {}, "Kept as"), numbers(kept, name => ({ tab: "samples", only: `kept:${name}` }))] : null,
    dropped.length ? [el("h3", {}, "Groups not trained on"), numbers(dropped, () => ({ tab: "groups", only: "dropped" }))] : null,
    el("h3", {}, "On the terminal"), pre([`overlap show ${f.command} --failed`, DATA ? `overlap view ${f.command}` : `overlap report ${f.command}`].join("\n"))];
}

const codes = row => row.map(text => el("code", {}, text));

function settingsView() {
  const { changed, same } = facts.settings;
  return [changed.length ? table(["field", "here", "default"], changed.map(codes)) : soft("All fields have their defaults."),
    same.length ? folded(`${same.length} fields with their defaults`, () => table(["field", "value"], same.map(codes))) : null];
}

function machineView() {
  const { history, facts: known } = facts.machine;
  return [history.length ? table(["when", "command", "changes"], history.map(([at, command, changes]) => [at, el("code", {}, command), changes])) : null,
    known.length ? table(["", ""], known) : null, soft("Run directory: ", el("code", {}, facts.path))];
}
