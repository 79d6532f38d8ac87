// One sample: why it got its reward first, then the test that decided, the program, and all else.

function sampleView(s, by) {
  const failed = s.tests.find(t => t.index === s.failed_test);
  return el("div", {},
    el("h1", {}, chip(s.verdict), ` ${idOf(s)} `),
    el("div", { class: "facts" }, el("a", { href: link({ open: problemOf(s.prompt_id) }) }, s.prompt_id), fact(s.split === "heldout" ? "held-out, after step" : "step", s.step),
      el("a", { href: link({ open: groupOf(s) }) }, `group ${s.group}`), fact("reward", number(s.reward)), fact("advantage", known(s.advantage) ? signed(s.advantage) : ""),
      fact("tokens", count(s.tokens)), fact("ended by", s.finish), fact("sampled in", `${number(s.generate_s, 2)} s`), fact("judged in", `${number(s.verify_s, 2)} s`),
      fact("weights", s.versions.map(([version]) => version).join(", ")), fact("kept as", s.kept_as.join(", ")), fact("node", s.node)),
    el("div", { class: `why ${s.failure ? "" : s.good ? "good" : "bad"}` }, s.why),
    failed ? failedTest(failed, s) : null,
    s.compile_log ? [el("h2", {}, "What the compiler said"), pre(s.compile_log)] : null,
    program(s), tests(s), tokens(s, by), episode(s),
    s.dialog?.startsWith(s.prompt) ? null : [el("h2", {}, "Prompt"), dialog(s.prompt)],
    el("h2", {}, s.dialog ? "Dialog" : "Answer"), s.dialog ? dialog(s.dialog) : pre(s.answer));
}

const seconds = (name, value) => fact(name, known(value) ? `${number(value, 2)} s` : "");

function failedTest(t, s) {
  const differs = t.expected !== null && t.got !== null && t.diff.length > 0;
  const part = (name, content) => known(content) ? [el("h3", {}, name), pre(content)] : null;
  return [
    el("h2", {}, `Test ${t.index + 1}${s.total ? ` of ${s.total}` : ""}: ${t.words}`),
    el("div", { class: "facts" }, fact("", t.ending), seconds("CPU", t.cpu_s), seconds("wall", t.wall_s), fact("memory", t.memory_bytes ? `${number(t.memory_bytes / 2 ** 20, 0)} MiB` : "")),
    t.message ? el("p", {}, t.message) : null,
    part("Input", t.input),
    differs ? [el("h3", {}, el("span", { class: "legend" }, el("span", { class: "minus" }, "− expected"), " ", el("span", { class: "plus" }, "+ got"))), diff(t.diff)]
      : [part(s.kind === "interactive" ? "The judge's answer" : "Expected", t.expected), part("Got", t.got)],
    part("stderr", t.stderr),
  ];
}

function diff(lines) {
  const kinds = { "-": "minus", "+": "plus" };
  return el("pre", { class: "diff" }, lines.map(line => el("div", { class: kinds[line[0]] ?? "soft" }, el("span", { class: "sign" }, line[0] === "-" ? "−" : line[0] === "@" ? "…" : line[0]), line.slice(2))));
}

function program(s) {
  if (!s.program) return null;
  const parts = s.program.parts.map(([kind, content]) => kind ? el("span", { class: kind }, content) : content);
  return [el("h2", {}, `Program${s.program.language ? ` (${s.program.language})` : ""}`), el("pre", { class: "code" }, parts),
    (s.program.files ?? []).map(([name, content]) => [el("h3", {}, name), pre(content, "code")])];
}

function tests(s) {
  if (!s.tests.length) return null;
  const row = t => el("tr", { class: t.index === s.failed_test ? "first-failed" : "" }, el("td", { class: "n" }, t.index + 1), el("td", {}, chip(t.verdict)),
    el("td", { class: "n" }, number(t.cpu_s)), el("td", { class: "n" }, number(t.wall_s)), el("td", { class: "n" }, t.memory_bytes ? number(t.memory_bytes / 2 ** 20, 1) : ""),
    el("td", {}, t.ending === "exit code 0" ? "" : t.ending), el("td", { class: "wide" }, t.message, texts(t)));
  return [el("h2", {}, `Tests (${s.total === null ? s.tests.length : `${s.passed} of ${s.total} passed`})`),
    table(["test", "verdict", "CPU s", "wall s", "MiB", "end", "message"], s.tests.map(row), ["test", "CPU s", "wall s", "MiB"])];
}

function texts(t) {
  const there = ["input", "expected", "got", "stderr"].filter(name => known(t[name]));
  if (!there.length) return null;
  return folded(there.join(", "), () => there.map(name => [el("h3", {}, name), pre(t[name])]));
}

function tokens(s, by) {
  if (!s.has_tokens) return null;
  const out = el("div"), bar = el("div", { class: "bar" });
  const show = async name => {
    for (const button of bar.children) button.setAttribute("aria-pressed", String(button.value === name));
    out.replaceChildren(soft("…"));
    try { out.replaceChildren(...coloured(await ask(`tokens/${s.step}/${s.group}/${s.sample}`), name)); }
    catch (error) { out.replaceChildren(el("p", { class: "problem-text" }, error.message)); }
  };
  const titles = { gap: "gap of engine and learner", advantage: "advantage", logprob: "log-prob" };
  add(bar, Object.entries(titles).map(([name, title]) => el("button", { type: "button", value: name, "aria-pressed": "false", onclick: () => { go({ by: name }, true); show(name); } }, title)));
  if (by) show(by);
  return [el("h2", {}, `Tokens (${count(s.tokens)})`), bar, out];
}

function coloured(told, name) {
  const values = told.figures[name], note = told.error ? el("p", { class: "problem-text" }, told.error) : "";
  if (!values) return [note, soft(name === "gap" ? "The learner computes log-probs only of samples that it trains on." : `No ${name} is kept of this sample.`)];
  const there = values.filter(known), top = Math.max(...there.map(Math.abs), 1e-9), scale = name === "advantage" ? Math.max(1, top) : name === "gap" ? Math.max(0.02, Math.min(top, 1)) : Math.min(top, 5);
  const box = el("pre", { class: "tokens text" });
  told.texts.forEach((content, index) => {
    const value = values[index], span = el("span", { title: `token ${index}: ${value === null ? "not sampled" : `${name} ${value}`}`, class: value === null ? "foreign" : "" }, content);
    if (value) span.style.background = `rgb(${value > 0 ? "40 170 100" : "225 70 60"} / ${(0.08 + 0.6 * Math.min(1, Math.abs(value) / scale)).toFixed(2)})`;
    box.append(span);
  });
  return [note, soft(`mean ${(sum(there) / there.length).toFixed(5)}, largest ${top.toFixed(5)}; green is above 0, red below. Point at a token for its figure.`), box];
}

function episode(s) {
  if (!s.forks.length) return null;
  const branch = b => {
    const left = b.parent ? `leaves branch ${b.parent} after ${plural(b.shared, "token")}` : "begins the episode";
    const made = folded(`Branch ${b.number} ${left}, ${plural(b.tokens, "token")}, ${b.number === s.forks.length ? "judged" : `ended by ${b.finish}`}`, () => pre(b.text));
    made.style.marginLeft = `${Math.min(b.depth, 12) * 18}px`;
    return made;
  };
  return [el("h2", {}, `Episode: ${plural(s.turns, "turn")} on ${s.forks.length === 1 ? "1 branch" : `${s.forks.length} branches`}`), s.forks.map(branch)];
}

// A chat of ChatML turns as one box a turn; any other text as it is.
function dialog(content) {
  const turns = content.split(/<\|im_start\|>/);
  if (turns.length < 2) return pre(content);
  return turns.filter(turn => turn.trim()).map(turn => {
    const [, role, said] = turn.match(/^(\w*)\n?([^]*)$/) ?? [null, "", turn];
    const told = said.replace(/<\|im_end\|>\s*$/, "");
    return told.trim() ? [role ? el("h3", {}, role) : null, pre(told)] : null;
  });
}
