// The three lists: what is asked for and how a row of each looks.

import { chip, count, el, idOf, inOrder, number, signed, svg } from "./dom.js";
import { groupOf, link, placeOf, problemOf } from "./state.js";

const cell = (content, kind = "", name = null) => el("span", { class: kind, "data-name": content === "" ? null : name, title: typeof content === "string" ? content : null }, content);
const heads = (kind, ...names) => () => el("div", { class: `row heads ${kind}`, "aria-hidden": "true" }, ...names.map(([name, sort]) => cell(name, sort)));

export const SORTS = {
  samples: { "-step": "newest first", step: "oldest first", reward: "lowest reward", "-reward": "highest reward", "-advantage": "highest advantage",
    advantage: "lowest advantage", "-tokens": "longest", tokens: "shortest", "-verify_s": "slowest to judge", "-generate_s": "slowest to sample" },
  groups: { "": "newest first" }, problems: { "": "hardest first" },
};
export const ONLY = {
  samples: { "": "all", failed: "not passed", failure: "not scored", dropped: "taught nothing", weak: "weak", truncated: "cut off" },
  groups: { "": "all", dropped: "taught nothing", failed: "never solved" }, problems: { "": "all" },
};

export function kinds(shown) {
  const { q, split, step, problem, verdict, only, sort } = shown;
  const flag = only.startsWith("kept:") ? { kept_as: only.slice(5) } : only ? { [only]: "1" } : {};
  return {
    samples: {
      path: "samples", given: { q, split, step, problem, verdict, sort, ...flag }, key: placeOf, place: placeOf,
      heads: heads("sample", ["verdict", ""], ["problem", ""], ["sample", ""], ["reward", "n"], ["advant.", "n"], ["tests", "n"], ["tokens", "n"]),
      row: s => el("a", { class: "row sample", href: link({ open: placeOf(s) }) }, cell(chip(s.verdict), "first"), cell(s.prompt_id, "wide"),
        cell(`${s.split === "heldout" ? "eval " : ""}${s.step}·${idOf(s)}`, "soft"), cell(number(s.reward), "n", "reward"), cell(signed(s.advantage), "n hide"),
        cell(s.total === null ? "" : `${s.passed}/${s.total}`, "n soft", "tests"), cell(count(s.tokens) + (s.truncated ? "…" : ""), "n soft", "tokens")),
    },
    groups: {
      path: "groups", given: { q, split, step, problem, verdict, ...flag }, key: groupOf, place: groupOf,
      heads: heads("group", ["step", ""], ["problem", ""], ["solved", "n"], ["reward", "n"], ["verdicts", ""], ["taught", ""]),
      row: g => el("a", { class: "row group", href: link({ open: groupOf(g) }) }, cell(String(g.step), "first soft", "step"), cell(g.prompt_id, "wide"),
        cell(`${g.solved}/${g.samples}`, "n", "solved"), cell(number(g.reward), "n", "reward"),
        cell(inOrder(g.verdicts).map(([v, n]) => `${v} ${n}`).join("  "), "soft"),
        cell(g.taught + (g.kept ? "" : ", not kept"), "soft")),
    },
    problems: {
      path: "problems", given: { q, split }, key: p => problemOf(p.prompt_id), place: p => problemOf(p.prompt_id),
      heads: heads("problem", ["problem", ""], ["split", ""], ["solved", "n"], ["reward over steps", ""]),
      row: p => el("a", { class: "row problem", href: link({ open: problemOf(p.prompt_id) }) }, cell(p.prompt_id, "wide"), cell(p.split, "soft"),
        cell(`${p.solved}/${p.samples}`, "n", "solved"), spark(p.course)),
    },
  };
}

function spark(course) {
  const known = course.filter(([, reward]) => reward !== null);
  const made = svg("svg", { width: 130, height: 22, viewBox: "0 0 130 22", "aria-hidden": "true" });
  if (!known.length) return made;
  const x = index => known.length > 1 ? 3 + 124 * index / (known.length - 1) : 65;
  const y = reward => 19 - 16 * Math.max(0, Math.min(1, reward));
  made.append(svg("polyline", { class: "train", points: known.map(([, reward], index) => `${x(index)},${y(reward)}`).join(" ") }));
  const [, last] = known.at(-1);
  made.append(svg("circle", { class: "train", cx: x(known.length - 1), cy: y(last), r: 2 }));
  return made;
}
