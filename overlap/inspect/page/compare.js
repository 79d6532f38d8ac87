// Several runs side by side.

function comparisonView(c) {
  const small = text => text ? [el("br"), el("small", { class: "soft" }, text)] : null;
  const named = c.names.map((name, at) => el("td", {}, key(el("b", {}, name), colour(at % 7), "dot"), small(c.outcomes[at].steps)));
  const outcome = (o, at) => [named[at], el("td", {}, o.reward[0], small(o.reward[1])), ...[0, 1].map(k => el("td", {}, o.heldout[k]?.[0] ?? "–", small(o.heldout[k]?.[1]))), o.time, o.samples];
  const warned = c.names.map((name, at) => c.warnings[at].length ? [el("h3", {}, name), c.warnings[at].map(text => el("div", { class: "warn" }, `${capital(text)}.`))] : null);
  return el("div", { id: "run" },
    el("h2", {}, "Outcome"), table(["run", "mean reward", "held-out before", "held-out after", "time of steps", "samples"], c.outcomes.map(outcome)),
    c.paired.length ? [el("h2", {}, "Held-out problems, paired"), soft(`Each problem is compared with itself: the last evaluation of a run against that of ${c.paired[0].first}.`),
      table(["run", "difference", "95% CI", ""], c.paired.map(p => [el("b", {}, p.name), p.difference || "–", p.interval || "–", p.says])),
      c.paired.filter(p => p.problems).map(p => folded(`${p.name} against ${p.first}, by problem`, () => dumbbells(p.problems)))] : null,
    el("h2", {}, "Warnings"), warned.some(Boolean) ? warned : soft("None."),
    el("h2", {}, "Differences of configuration"), c.differences.length ? table(["field", ...c.names], c.differences.map(codes)) : soft("None but run.dir."),
    c.charts.map(({ unit, charts }, at) => {
      const tiles = () => el("div", { class: "tiles" }, charts.map(chart => chartTile(chart, [], unit)));
      const title = unit === "min" ? "Curves by time of the steps" : "Curves by samples";
      return !charts.length ? null : at ? folded(title, tiles) : [el("h2", {}, title), tiles()];
    }));
}
