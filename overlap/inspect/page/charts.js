// Charts as SVG: lines over steps, and parts stacked to a whole. A chart is 360 units wide, about as many as its tile has pixels.

const W = 360, H = 192, LEFT = 46, RIGHT = 350, TOP = 18, BOTTOM = 172, BARS = 60;

function roundNumbers(low, high, some) {
  const rough = (high - low) / Math.max(1, some - 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 2.5, 5, 10].find(m => m * power >= rough * 0.999) ?? 10) * power, first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor((high - first * step) / step + 1e-9) + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
}

function tickLabel(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= 10 * unit || (size >= unit && unit > 1e3)) return `${+(value / unit).toPrecision(4)}${name}`;
  return size > 0 && size < 1e-3 ? value.toExponential(0) : String(+value.toPrecision(6));
}

// Where values lie; of a logarithmic axis, which spans more than three orders of magnitude, low and high are exponents.
function axisOf(xs, values, { share, zero }) {
  let low = Math.min(...values), high = Math.max(...values);
  const log = !share && low > 0 && high / low > 1000;
  if (log) [low, high] = [Math.log10(low), Math.log10(high)];
  if (share && high <= 1) [low, high] = [Math.min(0, low), high < 0.25 ? Math.max(high, 0.05) : 1];
  else if (zero && low >= 0 && !log) low = 0;
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) [low, high] = low === 0 || log ? [low, low + 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  else if (!share) { const spare = (high - low) * 0.06; low = zero && low === 0 ? 0 : low - spare; high += spare; }
  const x0 = Math.min(...xs), x1 = Math.max(...xs);
  const y = value => BOTTOM - (BOTTOM - TOP) * ((log ? Math.log10(value) : value) - low) / (high - low);
  return { x0, x1, low, high, log, share, x: value => LEFT + (RIGHT - LEFT) * (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5), y };
}

function ticks(axis) {
  if (!axis.log) return roundNumbers(axis.low, axis.high, 5).map(value => [axis.y(value), axis.share ? `${+(100 * value).toPrecision(3)}%` : tickLabel(value)]);
  const first = Math.ceil(axis.low), last = Math.floor(axis.high), every = Math.max(1, Math.floor((last - first) / 4)), powers = [];
  for (let power = first; power <= last; power += every) powers.push([axis.y(10 ** power), Math.abs(power) > 2 ? `1e${power}` : String(10 ** power)]);
  return powers;
}

// ``chart``: as in overlap/inspect/curves.py. A line may have its own ``xs``.
function chartTile(chart, xs, unit = "step") {
  const lines = chart.lines.map(line => ({ ...line, points: (line.xs ?? xs).map((x, at) => [x, line.values[at], line.running?.[at]]).filter(([, v]) => known(v)) }));
  const marks = chart.marks, half = chart.stacked && xs.length > 1 ? (xs[1] - xs[0]) / 2 : 0;
  const tops = chart.stacked ? xs.map((_, at) => sum(lines.map(line => line.values[at] ?? 0))) : lines.flatMap(line => line.points.map(([, v]) => v));
  const places = chart.stacked ? [xs[0] - half, xs.at(-1) + half] : [...lines.flatMap(line => line.points.map(([x]) => x)), ...marks.map(([x]) => x)];
  const axis = axisOf(places, [...tops, ...(chart.stacked ? [0] : []), ...marks.flatMap(mark => mark.slice(1).filter(known))], chart);
  const body = chart.stacked ? stack(axis, lines, xs) : lines.flatMap(line => lineOf(axis, line));
  const legend = lines.map(line => key(line.name, colour(line.colour), chart.stacked ? "sq" : "")).concat(marks.length ? [key(chart.mark_name, "var(--mark)", "sq")] : []);
  const drawn = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": chart.title }, grid(axis, chart.unit, unit), body, marks.map(mark => markOf(axis, mark)));
  const read = el("div", { class: "read" });
  if (!chart.stacked) pointer(drawn, read, axis, lines, unit);
  return el("div", { class: "tile" }, el("h3", {}, chart.title), el("div", { class: "keys" }, legend), drawn, read, chart.note ? soft(chart.note) : null);
}

function key(name, ink, kind) {
  const dot = el("i", { class: kind });
  dot.style.color = ink;
  return el("span", {}, dot, name);
}

const label = (x, y, text, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);

function grid(axis, unit, xUnit) {
  const across = axis.x1 > axis.x0 ? roundNumbers(axis.x0, axis.x1, 6) : [axis.x0];
  return [ticks(axis).map(([y, name]) => [svg("path", { class: "grid", d: `M${LEFT} ${y}H${RIGHT}` }), label(LEFT - 6, y + 4, name, "end")]),
    across.filter(x => xUnit !== "step" || Number.isInteger(x)).map(x => label(axis.x(x), BOTTOM + 15, tickLabel(x), "middle")),
    svg("path", { class: "axis", d: `M${LEFT} ${BOTTOM}H${RIGHT}` }), label(2, TOP - 9, unit, "start"), label(2, BOTTOM + 15, xUnit, "start")];
}

// A line; of many values their running mean, or what is given as that, with themselves faint behind it.
function lineOf(axis, line) {
  const placed = line.points.map(([x, v]) => [axis.x(x), axis.y(v)]), wide = Math.floor(placed.length / 12), stroke = { stroke: colour(line.colour) };
  if (placed.length === 1) return [svg("circle", { cx: placed[0][0], cy: placed[0][1], r: 3, fill: colour(line.colour) })];
  const path = points => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  if (wide < 2) return [svg("polyline", { class: "l", points: path(placed), ...stroke })];
  // Behind the point alone: what is drawn for a step knows nothing of later ones.
  const means = line.points.map(([, , running], at) => {
    const some = placed.slice(Math.max(0, at - wide + 1), at + 1);
    return [placed[at][0], known(running) ? axis.y(running) : sum(some.map(([, y]) => y)) / some.length];
  });
  return [svg("polyline", { class: "raw", points: path(placed), ...stroke }), svg("polyline", { class: "l", points: path(means), ...stroke })];
}

// Few steps are bars; of many, one shape for each part: the seams between thin bars would show.
function stack(axis, lines, xs) {
  const wide = (RIGHT - LEFT) / xs.length, gap = xs.length > BARS ? 0 : 0.09 * wide, lower = xs.map(() => 0);
  return lines.map(line => {
    const parts = xs.map((_, at) => {
      const low = lower[at], high = lower[at] += line.values[at] ?? 0;
      return high > low ? `M${(LEFT + wide * at + gap).toFixed(1)} ${axis.y(high).toFixed(1)}h${(wide - 2 * gap).toFixed(2)}V${axis.y(low).toFixed(1)}h${(2 * gap - wide).toFixed(2)}z` : "";
    });
    return svg("path", { fill: colour(line.colour), d: parts.join(""), "shape-rendering": gap ? "auto" : "crispEdges" });
  });
}

function markOf(axis, [step, value, low, high]) {
  const x = axis.x(step), y = axis.y(value);
  const bar = known(low) && known(high) ? `M${x} ${axis.y(low)}V${axis.y(high)}` : "";
  return svg("path", { class: "mark", d: `${bar}M${x} ${y - 4}l4 4l-4 4l-4-4z` });
}

// Reads the values under the pointer.
function pointer(drawn, read, axis, lines, unit) {
  const cross = svg("path", { class: "cross", d: "" });
  drawn.append(cross);
  drawn.addEventListener("pointermove", event => {
    const box = drawn.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * W;
    const near = line => line.points.reduce((a, b) => Math.abs(axis.x(b[0]) - at) < Math.abs(axis.x(a[0]) - at) ? b : a);
    const shown = lines.filter(line => line.points.length);
    if (!shown.length) return;
    const [x] = near(shown[0]);
    cross.setAttribute("d", `M${axis.x(x)} ${TOP}V${BOTTOM}`);
    read.textContent = `${unit} ${brief(Math.round(x * 100) / 100)}:  ${shown.map(line => `${line.name} ${brief(near(line)[1])}`).join(",  ")}`;
  });
  drawn.addEventListener("pointerleave", () => { cross.setAttribute("d", ""); read.textContent = ""; });
}

// A row for each problem: its rate by one policy and by the other.
function dumbbells({ names, lead, rows }) {
  const low = Math.min(0, ...rows.flatMap(r => r.slice(1))), high = Math.max(1, ...rows.flatMap(r => r.slice(1)));
  const x = value => `${(1.2 + 97.6 * (value - low) / (high - low)).toFixed(2)}%`, quarters = [0, 1, 2, 3, 4].map(k => low + (high - low) * k / 4);
  const drawn = svg("svg", { height: 14 * rows.length, role: "img", "aria-label": "rates by problem" },
    quarters.map(v => svg("line", { class: "grid", x1: x(v), x2: x(v), y1: 0, y2: "100%" })),
    rows.map(([, a, b], at) => {
      const y = at * 14 + 7, ink = colour(b > a ? 0 : b < a ? 1 : 7);
      return [svg("line", { x1: x(a), x2: x(b), y1: y, y2: y, stroke: ink, "stroke-width": 2.5 }),
        svg("circle", { cx: x(a), cy: y, r: 3.5, fill: "var(--back)", stroke: colour(7), "stroke-width": 1.5 }), svg("circle", { cx: x(b), cy: y, r: 4, fill: ink })];
    }));
  return [soft(lead), el("div", { class: "keys" }, key(names[0], colour(7), "sq"), key(`${names[1]}, better`, colour(0), "sq"), key(`${names[1]}, worse`, colour(1), "sq")),
    el("div", { class: "map few" }, el("div", { class: "names" }, rows.map(([name]) => el("div", { title: name }, name))),
      el("div", {}, drawn, el("div", { class: "ticks" }, quarters.map(v => el("span", {}, high > 1 || low < 0 ? brief(v) : percent(v))))))];
}

// A row for each problem and a column for each step: the share of its samples that were solved; the hardest first.
function passRateMap() {
  const rates = new Map();
  for (const g of groups) if (g.split === "train" && g.samples) rates.set(g.prompt_id, [...(rates.get(g.prompt_id) ?? []), g]);
  const often = [...rates.values()].sort((a, b) => b.length - a.length).slice(0, 90), last = Math.max(1, ...often.flat().map(g => g.step));
  // Of a long run a column is as many steps as a problem comes once in, so that the cells of a row touch.
  const several = last <= 60 || !often.length ? 1 : Math.max(Math.ceil(last / 240), Math.floor(last / often[often.length >> 1].length));
  const rate = gs => sum(gs.map(g => g.solved)) / sum(gs.map(g => g.samples)), across = Math.ceil(last / several);
  const rows = often.sort((a, b) => rate(a) - rate(b)), level = r => r === 0 ? 0 : r === 1 ? 5 : 1 + Math.min(3, Math.floor(r * 4));
  const cells = rows.flatMap((gs, at) => [...Map.groupBy(gs, g => Math.floor((g.step - 1) / several))].map(([column, some]) =>
    svg("path", { fill: `var(--m${level(rate(some))})`, d: `M${column} ${14 * at + 1}h1v12h-1z` })));
  const names = ["0%", "to 25%", "to 50%", "to 75%", "below 100%", "100%"], shown = rows.length < rates.size ? `${rows.length} of ${plural(rates.size, "problem")}` : plural(rates.size, "problem");
  return [soft(`${shown}, the hardest first; a cell is the share of a problem's samples that were solved in ${several > 1 ? `${several} steps` : "a step"}.`),
    el("div", { class: "keys" }, names.map((name, k) => key(name, `var(--m${k})`, "sq"))),
    el("div", { class: "map" }, el("div", { class: "names" }, rows.map(([g]) => el("div", { title: g.prompt_id }, g.prompt_id))),
      el("div", {}, svg("svg", { viewBox: `0 0 ${across} ${14 * rows.length}`, preserveAspectRatio: "none", height: 14 * rows.length, role: "img", "aria-label": "pass rates" }, cells),
        el("div", { class: "ticks" }, el("span", {}, "step 1"), el("span", {}, `step ${last}`))))];
}
