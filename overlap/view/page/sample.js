// One sample: why it got its reward first, then the test that decided, the program, and all else.

import { ask, chip, count, el, fact, idOf, number, plural, signed, text } from "./dom.js";
import { go, groupOf, link, problemOf } from "./state.js";

export function sampleView(s, by) {
  const failed = s.tests.find(t => t.index === s.failed_test);
  return el("div", {},
    el("h1", {}, chip(s.verdict), ` ${idOf(s)} `),
    el("div", { class: "facts" }, el("a", { href: link({ open: problemOf(s.prompt_id) }) }, s.prompt_id), fact(s.split === "heldout" ? "held-out, after step" : "step", s.step),
      el("a", { href: link({ open: groupOf(s) }) }, `group ${s.group}`), fact("reward", number(s.reward)), fact("advantage", s.advantage === null ? "" : signed(s.advantage)),
      fact("tokens", count(s.tokens)), fact("ended by", s.finish), fact("sampled in", `${number(s.generate_s, 2)} s`), fact("judged in", `${number(s.verify_s, 2)} s`),
      fact("weights", s.versions.map(([version]) => version).join(", ")), fact("kept as", s.kept_as.join(", ")), fact("node", s.node)),
    el("div", { class: `why ${s.failure ? "" : s.good ? "good" : "bad"}` }, s.why),
    failed ? failedTest(failed, s) : null,
    s.compile_log ? [el("h2", {}, "What the compiler said"), text(s.compile_log)] : null,
    program(s), tests(s), tokens(s, by), episode(s),
    s.dialog?.startsWith(s.prompt) ? null : [el("h2", {}, "Prompt"), dialog(s.prompt)],
    el("h2", {}, s.dialog ? "Dialog" : "Answer"), s.dialog ? dialog(s.dialog) : text(s.answer));
}

function failedTest(t, s) {
  const known = t.expected !== null && t.got !== null;
  return [
    el("h2", {}, `Test ${t.index + 1}${s.total ? ` of ${s.total}` : ""}: ${t.words}`),
    el("div", { class: "facts" }, fact("", t.ending), fact("CPU", t.cpu_s === undefined ? "" : `${number(t.cpu_s, 2)} s`), fact("wall", t.wall_s === undefined ? "" : `${number(t.wall_s, 2)} s`),
      fact("memory", t.memory_bytes ? `${number(t.memory_bytes / 2 ** 20, 0)} MiB` : "")),
    t.message ? el("p", {}, t.message) : null,
    t.input !== null ? [el("h3", {}, "Input"), text(t.input)] : null,
    known && t.diff.length ? [el("h3", {}, el("span", { class: "legend" }, el("span", { class: "minus" }, "− expected"), " ", el("span", { class: "plus" }, "+ got"))), diff(t.diff)] : null,
    t.expected !== null && !(known && t.diff.length) ? [el("h3", {}, s.kind === "interactive" ? "The judge's answer" : "Expected"), text(t.expected)] : null,
    t.got !== null && !(known && t.diff.length) ? [el("h3", {}, "Got"), text(t.got)] : null,
    t.stderr ? [el("h3", {}, "stderr"), text(t.stderr)] : null,
  ];
}

function diff(lines) {
  const kinds = { "-": "minus", "+": "plus" };
  return el("pre", { class: "diff" }, ...lines.map(line => el("div", { class: kinds[line[0]] ?? "soft" }, el("span", { class: "sign" }, line[0] === "-" ? "−" : line[0] === "@" ? "…" : line[0]), line.slice(2))));
}

function program(s) {
  if (!s.program) return null;
  const parts = s.program.parts.map(([kind, content]) => kind ? el("span", { class: kind }, content) : content);
  return [el("h2", {}, `Program${s.program.language ? ` (${s.program.language})` : ""}`), el("pre", { class: "code" }, ...parts),
    ...(s.program.files ?? []).map(([name, content]) => [el("h3", {}, name), text(content, "code")]).flat()];
}

function tests(s) {
  if (!s.tests.length) return null;
  const row = t => el("tr", { class: t.index === s.failed_test ? "first-failed" : "" }, el("td", { class: "n" }, t.index + 1), el("td", {}, chip(t.verdict)),
    el("td", { class: "n" }, number(t.cpu_s)), el("td", { class: "n" }, number(t.wall_s)), el("td", { class: "n" }, t.memory_bytes ? number(t.memory_bytes / 2 ** 20, 1) : ""),
    el("td", {}, t.ending === "exit code 0" ? "" : t.ending), el("td", { class: "wide" }, t.message, texts(t)));
  return [el("h2", {}, `Tests (${s.total === null ? s.tests.length : `${s.passed} of ${s.total} passed`})`),
    el("div", { class: "scroll" }, el("table", {}, el("tr", {}, el("th", { class: "n" }, "test"), el("th", {}, "verdict"), ...["CPU s", "wall s", "MiB"].map(n => el("th", { class: "n" }, n)), el("th", {}, "end"), el("th", {}, "message")), ...s.tests.map(row)))];
}

function texts(t) {
  const there = ["input", "expected", "got", "stderr"].filter(name => t[name] !== null && t[name] !== undefined);
  if (!there.length) return null;
  const box = el("details", {}, el("summary", {}, there.join(", ")));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(...there.flatMap(name => [el("h3", {}, name), text(t[name])])); });
  return box;
}

function tokens(s, by) {
  if (!s.has_tokens) return null;
  const out = el("div"), bar = el("div", { class: "bar" });
  const show = async name => {
    for (const button of bar.children) button.setAttribute("aria-pressed", String(button.value === name));
    out.replaceChildren(el("p", { class: "soft" }, "…"));
    try { out.replaceChildren(...coloured(await ask(`tokens/${s.step}/${s.group}/${s.sample}`), name)); }
    catch (error) { out.replaceChildren(el("p", { class: "problem-text" }, error.message)); }
  };
  const titles = { gap: "gap of engine and learner", advantage: "advantage", logprob: "log-prob" };
  bar.append(...Object.entries(titles).map(([name, title]) => el("button", { type: "button", value: name, "aria-pressed": "false", onclick: () => { go({ by: name }, true); show(name); } }, title)));
  if (by) show(by);
  return [el("h2", {}, `Tokens (${count(s.tokens)})`), bar, out];
}

function coloured(found, name) {
  const values = found.figures[name], note = found.error ? el("p", { class: "problem-text" }, found.error) : "";
  if (!values) return [note, el("p", { class: "soft" }, name === "gap" ? "The learner computes log-probs only of samples that it learns from." : `No ${name} is kept of this sample.`)];
  const known = values.filter(v => v !== null), top = Math.max(...known.map(Math.abs), 1e-9), scale = name === "advantage" ? Math.max(1, top) : name === "gap" ? Math.max(0.02, Math.min(top, 1)) : Math.min(top, 5);
  const box = el("pre", { class: "tokens text" });
  found.texts.forEach((content, index) => {
    const value = values[index], span = el("span", { title: `token ${index}: ${value === null ? "not sampled" : `${name} ${value}`}`, class: value === null ? "foreign" : "" }, content);
    if (value) span.style.background = `rgb(${value > 0 ? "40 170 100" : "225 70 60"} / ${(0.08 + 0.6 * Math.min(1, Math.abs(value) / scale)).toFixed(2)})`;
    box.append(span);
  });
  const mean = known.reduce((sum, v) => sum + v, 0) / known.length;
  return [note, el("p", { class: "soft" }, `mean ${mean.toFixed(5)}, largest ${top.toFixed(5)}; green is above 0, red below. Point at a token for its figure.`), box];
}

function episode(s) {
  if (!s.forks.length) return null;
  const branch = b => {
    const left = b.parent ? `leaves branch ${b.parent} after ${plural(b.shared, "token")}` : "begins the episode";
    const made = el("details", {}, el("summary", {}, `Branch ${b.number} ${left}, ${plural(b.tokens, "token")}, ${b.number === s.forks.length ? "judged" : `ended by ${b.finish}`}`), text(b.text));
    made.style.marginLeft = `${Math.min(b.depth, 12) * 18}px`;
    return made;
  };
  return [el("h2", {}, `Episode: ${plural(s.turns, "turn")} on ${s.forks.length === 1 ? "1 branch" : `${s.forks.length} branches`}`), ...s.forks.map(branch)];
}

// A chat of ChatML turns as one box a turn; any other text as it is.
function dialog(content) {
  const turns = content.split(/<\|im_start\|>/);
  if (turns.length < 2) return text(content);
  return turns.filter(turn => turn.trim()).map(turn => {
    const [, role, said] = turn.match(/^(\w*)\n?([^]*)$/) ?? [null, "", turn];
    const words = said.replace(/<\|im_end\|>\s*$/, "");
    return words.trim() ? [role ? el("h3", {}, role) : null, text(words)] : null;
  });
}
