// Reads values off a chart under the pointer, and opens the group that a link names. The page is whole without it.
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
