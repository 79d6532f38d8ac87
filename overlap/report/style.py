"""How the page looks: colours that the colour-blind tell apart (Okabe & Ito 2008), in light and dark; and its script."""

from __future__ import annotations

STYLE = """
:root{--bg:#fbfbfa;--panel:#fff;--ink:#1d2127;--soft:#5c6470;--line:#e3e5e8;--grid:#eceef0;--warn:#fff6e5;--warnline:#e0a030;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#7a5cc0;--c7:#8a8f98;--mark:#1d2127;
--m0:#b2521b;--m1:#e59a5f;--m2:#f3d3b0;--m3:#bfdcec;--m4:#5aa5d0;--m5:#0b5f94;--code:#f4f5f6;--good:#00795a;--bad:#b34700}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--panel:#1b1f24;--ink:#e6e8eb;--soft:#9aa3ae;--line:#2d333b;--grid:#262b32;
--warn:#2b2416;--warnline:#c98d2b;--c0:#4aa8e0;--c1:#f0803c;--c2:#2cc096;--c3:#e09cc3;--c4:#f0b840;--c5:#8ccdf2;--c6:#a58ce8;
--c7:#7f8792;--mark:#f2f3f5;--m0:#d9702f;--m1:#a8602f;--m2:#5c412b;--m3:#27455a;--m4:#2f7fae;--m5:#6cc0f0;--code:#12151a;
--good:#3fcea2;--bad:#f58a4b}}
*{box-sizing:border-box}html{scroll-behavior:smooth;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",
"DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
header,main,nav{max-width:1240px;margin:0 auto;padding:0 24px}header{padding-top:32px}
h1{font-size:27px;line-height:1.2;margin:2px 0 6px;font-weight:650;letter-spacing:-.01em}
h2{font-size:19px;margin:0 0 4px;font-weight:650}h3{font-size:14px;margin:0;font-weight:600}
h4{font-size:12px;margin:14px 0 4px;font-weight:600;color:var(--soft)}
.kind{margin:0;color:var(--soft);font-size:13px}.sub,.lead{margin:0 0 14px;color:var(--soft)}.lead{font-size:14px;max-width:80ch}
nav{position:sticky;top:0;z-index:2;background:var(--bg);display:flex;gap:2px 18px;padding-top:10px;padding-bottom:10px;
font-size:14px;overflow-x:auto;white-space:nowrap;scrollbar-width:none}nav::-webkit-scrollbar{display:none}
nav a{color:var(--soft);text-decoration:none}nav a:hover{color:var(--c0)}a{color:var(--c0)}
section{padding:22px 0 16px;border-top:1px solid var(--line);scroll-margin-top:42px}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(185px,1fr));gap:12px;margin-top:10px}
.card,.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 14px;min-width:0}
.card span{display:block;color:var(--soft);font-size:13px}.card b{display:block;font-size:20px;font-weight:600;line-height:1.35}
.card small{display:block;color:var(--soft);font-size:12.5px;line-height:1.4}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,350px),1fr));gap:14px;margin-top:12px}
.tile svg{display:block;width:100%;height:auto;margin-top:4px;overflow:visible}
.tile p{margin:0;color:var(--soft);font-size:12.5px;line-height:1.45}.tile+p,.note{color:var(--soft);font-size:13px}
.keys{display:flex;flex-wrap:wrap;gap:0 14px;min-height:20px;color:var(--soft);font-size:12.5px}
.keys i{display:inline-block;width:12px;height:3px;border-radius:2px;margin-right:5px;vertical-align:middle;background:currentColor}
.keys i.sq{height:10px;width:10px}.read{min-height:19px;font-size:12.5px;color:var(--soft)}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--line);fill:none}.cross{stroke:var(--soft);stroke-dasharray:2 2}
.l{fill:none;stroke-width:1.8;stroke-linejoin:round}.raw{fill:none;stroke-width:1;opacity:.32}.mark{stroke:var(--mark);
fill:var(--mark)}
.warn{background:var(--warn);border:1px solid var(--line);border-left:4px solid var(--warnline);border-radius:6px;
padding:10px 14px;margin:10px 0}.warn p{margin:0}.warn .out{color:var(--ink)}.warn small{color:var(--soft)}
.wide{overflow-x:auto;margin-top:8px}table{border-collapse:collapse;font-size:13.5px;width:100%}
th{text-align:left;color:var(--soft);font-weight:500;font-size:12.5px}td,th{padding:5px 14px 5px 0;border-bottom:1px solid
var(--line);vertical-align:top}td.n,th.n{text-align:right}code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,
"Liberation Mono","DejaVu Sans Mono",monospace;font-size:12.5px}
pre{background:var(--code);border:1px solid var(--line);border-radius:6px;padding:8px 10px;margin:4px 0;max-height:420px;
overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext}
details{border:1px solid var(--line);border-radius:8px;background:var(--panel);margin:8px 0}
summary{cursor:pointer;padding:8px 12px;list-style-position:inside}summary:hover{background:var(--code)}
details>div{padding:2px 12px 12px}details details{background:none}
.pill{display:inline-block;padding:0 8px;border-radius:9px;font-size:12.5px;border:1px solid currentColor;font-weight:600}
.good{color:var(--good)}.bad{color:var(--bad)}.soft{color:var(--soft)}
.strip{display:inline-flex;gap:2px;vertical-align:middle;margin:0 8px}.strip i{width:9px;height:14px;border-radius:2px;
background:var(--m2)}.cases{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,240px),1fr));gap:0 12px}
.map{display:grid;grid-template-columns:minmax(70px,190px) minmax(0,1fr);gap:0 8px;font-size:11px;line-height:14px}
.map .names{text-align:right;color:var(--soft)}.names div{height:14px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.map svg{width:100%;display:block}.ticks{display:flex;justify-content:space-between;color:var(--soft);font-size:11.5px;
padding-top:3px}.lanes{display:grid;grid-template-columns:76px minmax(0,1fr);gap:8px;font-size:12.5px;align-items:center;
color:var(--soft)}.lanes svg{width:100%;display:block;background:var(--code);border-radius:4px}
@media (max-width:640px){header,main,nav{padding-left:14px;padding-right:14px}h1{font-size:22px}.cards{grid-template-columns:1fr 1fr;
gap:8px}.card{padding:9px 10px}.card b{font-size:17px}.map{grid-template-columns:84px minmax(0,1fr)}td,th{padding-right:10px}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}@media print{nav{display:none}}
""".replace("\n", "")

SCRIPT = """
for (const svg of document.querySelectorAll('svg[data-x]')) {
  const [x0, x1, left, right] = svg.dataset.x.split(' ').map(Number);
  const [y0, y1, bottom, top, log] = svg.dataset.y.split(' ').map(Number);
  const read = svg.parentNode.querySelector('.read'), cross = svg.querySelector('.cross');
  const lines = [...svg.querySelectorAll('[data-n]')].map(l => [l.dataset.n, l.getAttribute('points').trim()
    .split(' ').map(p => p.split(',').map(Number))]);
  const show = n => Math.abs(n) >= 1e4 || (n && Math.abs(n) < 1e-3) ? n.toExponential(1) : String(+n.toPrecision(3));
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const at = (event.clientX - box.left) / box.width * view.width;
    const near = ps => ps.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
    if (!lines.length) return;
    const x = near(lines[0][1])[0], found = lines.map(([name, ps]) => {
      const y = y0 + (bottom - near(ps)[1]) / (bottom - top) * (y1 - y0);
      return name + ' ' + show(log ? 10 ** y : y);
    });
    const xs = x0 + (x - left) / ((right - left) || 1) * (x1 - x0);
    cross.setAttribute('d', 'M' + x + ' ' + top + 'V' + bottom);
    read.textContent = svg.dataset.u + ' ' + show(Math.round(xs * 100) / 100) + ':  ' + found.join(',  ');
  });
  svg.addEventListener('pointerleave', () => { cross.setAttribute('d', ''); read.textContent = ''; });
}
const opened = () => { const t = location.hash && document.getElementById(location.hash.slice(1));
  for (let e = t; e; e = e.parentElement) if (e.tagName === 'DETAILS') e.open = true; };
addEventListener('hashchange', opened); opened();
"""
