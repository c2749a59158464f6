// Charts in SVG, drawn to their available width, with a read-out at the pointer, and their numbers as a table.

import {el, fill, short, table} from './dom.js';

const LEFT = 46;
const BOTTOM = 26;
const TOP = 8;
const RIGHT = 8;
const TABLE_ROWS = 200;

/** Round numbers between two bounds. */
export function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, wanted);
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(one => one * base).find(one => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) {
    found.push(Number(value.toFixed(9)));
  }
  return found;
}

/**
 * A figure with its title. `plot` has series [{name, points: [[x, y, low, high]], kind: 'line' | 'bars' | 'dots' |
 * 'specks', mark: whether it only marks points of another series}], x and y {label, format, low, high, ticks},
 * height, and link: the link of a point, from its series and its x. `redraw` of the figure draws another plot.
 */
export function figure(title, plot, note) {
  const box = el('div.plot');
  const readout = el('p.readout', {'aria-hidden': true}, '\u00a0');
  const many = plot.series.filter(one => !one.mark);
  const legend = many.length > 1 ? el('p.legend', null, many.map((one, i) =>
    el(`span.key.s${one.colour === undefined ? i : one.colour}`, null, el('bdi', null, one.name)))) : null;
  const axes = plot.x.label ? `${plot.y.label || ''} by ${plot.x.label}` : null;
  const details = el('details', null, el('summary', null, 'as a table'));
  details.addEventListener('toggle', () => {
    if (details.open) fill(details, details.firstChild, asTable(title, plot));
  });
  const node = el('figure', null, el('figcaption', null, title, axes && el('span.axes', null, axes)), legend, box,
    readout, note ? el('p.soft', null, note) : null, details);
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      fill(box, draw(plot, width, title, readout));
    }
  }).observe(box);
  node.redraw = next => {
    plot = next;
    if (width) fill(box, draw(plot, width, title, readout));
  };
  return node;
}

function asTable(title, {series, ...plot}) {
  plot.series = series.filter(one => !one.mark);
  const format = axis => axis.format || short;
  const rows = plot.series.flatMap(one => one.points.slice(0, TABLE_ROWS).map(([x, y, low, high]) => [
    ...(plot.series.length > 1 ? [one.name] : []),
    plot.link ? el('a', {href: plot.link(one, x)}, format(plot.x)(x)) : format(plot.x)(x),
    format(plot.y)(y) + (low === undefined ? '' : ` (${format(plot.y)(low)}–${format(plot.y)(high)})`)]));
  const heads = [...(plot.series.length > 1 ? ['series'] : []), plot.x.label || 'x', `>${plot.y.label || 'y'}`];
  return table(title, heads, rows);
}

function bounds(series, axis, index) {
  let [low, high] = [Infinity, -Infinity];
  for (const one of series) {
    for (const point of one.points) {
      for (const value of index ? point.slice(1) : [point[0]]) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
  }
  low = axis.low === undefined ? low : axis.low;
  high = axis.high === undefined ? high : axis.high;
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  return high > low ? [low, high] : [low - (index ? 0 : 0.5), low + (index ? 1 : 0.5)];
}

function draw(plot, width, title, readout) {
  const height = plot.height || 190;
  const {series, x, y} = plot;
  const wide = series.find(one => one.kind === 'bars');
  const bar = wide ? plot.barWidth || 1 : 0;
  let [x0, x1] = bounds(series, x, 0);
  if (wide && x.high === undefined) x1 += bar;
  if (plot.pad) [x0, x1] = [x0 - plot.pad, x1 + plot.pad];
  let [y0, y1] = bounds(series, y, 1);
  if (y.high === undefined) {
    const [first, second] = ticks(y0, y1, 4);
    if (second > first) y1 = Math.ceil(y1 / (second - first) - 1e-9) * (second - first);
  }
  const px = value => LEFT + (value - x0) / (x1 - x0) * (width - LEFT - RIGHT);
  const py = value => height - BOTTOM - (value - y0) / (y1 - y0) * (height - BOTTOM - TOP);
  const svg = el('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
      'aria-label': spoken(title, plot)});
  const format = axis => axis.format || short;
  let told = '';
  for (const value of y.ticks || ticks(y0, y1, 4)) {
    const text = format(y)(value);
    svg.append(el('line.grid', {x1: LEFT, x2: width - RIGHT, y1: py(value), y2: py(value)}),
      el('text.tick.end', {x: LEFT - 6, y: py(value) + 4}, text === told ? '' : text));
    told = text;
  }
  const marks = x.ticks || ticks(x0, x1, Math.max(4, Math.floor(width / 75)));
  let free = -Infinity;
  told = '';
  for (const value of marks) {
    const text = format(x)(value);
    const half = text.length * 3.9;
    const shift = Math.min(width - half, Math.max(half, px(value)));
    if (shift - half < free || text === told) continue;
    told = text;
    free = shift + half + 6;
    svg.append(el('text.tick.middle', {x: shift, y: height - 8}, text));
  }
  series.forEach((one, i) => svg.append(drawSeries(one, one.colour === undefined ? i : one.colour,
      {px, py, y0, bar, wide})));
  const cursor = el('line.cursor', {y1: TOP, y2: height - BOTTOM, visibility: 'hidden'});
  svg.append(cursor);
  const show = event => {
    const at = x0 + (event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT) * (x1 - x0);
    const found = series.filter(one => !one.mark).map(one => [one,
        nearest(one.points, at - (one.kind === 'bars' ? bar / 2 : 0))]).filter(pair => pair[1]);
    if (!found.length) return;
    const where = found[0][1][0];
    cursor.setAttribute('x1', px(where + (found[0][0].kind === 'bars' ? bar / 2 : 0)));
    cursor.setAttribute('x2', cursor.getAttribute('x1'));
    cursor.setAttribute('visibility', 'visible');
    readout.textContent = `${x.label ? `${x.label} ` : ''}${format(x)(where)}: ` + found.map(([one, point]) =>
      `${found.length > 1 ? `${one.name} ` : ''}${format(y)(point[1])}` +
      (point[2] === undefined ? '' : ` (${format(y)(point[2])}–${format(y)(point[3])})`)).join(', ');
  };
  if (plot.link) {
    svg.classList.add('linked');
    svg.addEventListener('click', event => { // the series whose point is nearest to the pointer
      const box = svg.getBoundingClientRect();
      const at = x0 + (event.clientX - box.left - LEFT) / (width - LEFT - RIGHT) * (x1 - x0);
      const away = ([, point]) => Math.abs(py(point[1]) - (event.clientY - box.top));
      const found = series.map(one => [one, nearest(one.points, at)]).filter(pair => pair[1]);
      if (!found.length) return;
      const [one, point] = found.reduce((best, pair) => away(pair) < away(best) ? pair : best);
      location.hash = plot.link(one, point[0]);
    });
  }
  svg.addEventListener('pointermove', show);
  svg.addEventListener('pointerdown', show);
  svg.addEventListener('pointerleave', () => {
    cursor.setAttribute('visibility', 'hidden');
    readout.textContent = '\u00a0';
  });
  return svg;
}

function drawSeries(one, colourNumber, {px, py, y0, bar, wide}) {
  const group = el(`g.s${colourNumber}`);
  if (one.kind === 'bars') {
    const path = one.points.map(([at, value]) => {
      const [left, right, top] = [px(at) + 0.5, Math.max(px(at) + 1.5, px(at + bar) - 0.5), py(value)];
      return value > y0 ? `M${left} ${py(y0)}V${top}H${right}V${py(y0)}Z` : '';
    }).join('');
    group.append(el('path.bars', {d: path}));
    for (const [at, , low, high] of one.points) {
      const middle = px(at + bar / 2);
      if (low !== undefined) group.append(el('line.whisker', {x1: middle, x2: middle, y1: py(low), y2: py(high)}));
    }
  } else if (one.kind === 'specks') {
    for (const [at, value] of one.points) group.append(el('circle.speck', {cx: px(at), cy: py(value), r: 1.8}));
  } else if (one.kind === 'dots') {
    for (const [at, value, low, high] of one.points) {
      if (low !== undefined) group.append(el('line.whisker', {x1: px(at), x2: px(at), y1: py(low), y2: py(high)}));
      group.append(el('circle.dot', {cx: px(at), cy: py(value), r: 3.5}));
    }
  } else {
    const shift = wide ? bar / 2 : 0;
    const path = one.points.map(([at, value],
        i) => `${i ? 'L' : 'M'}${px(at + shift).toFixed(1)} ${py(value).toFixed(1)}`).join('');
    group.append(one.points.length > 1 ? el('path.line', {d: path})
      : one.points.map(([at, value]) => el('circle.dot', {cx: px(at + shift), cy: py(value), r: 3.5}))[0] || '');
  }
  return group;
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at)) best = point;
  return best;
}

function spoken(title, {series, x, y}) {
  const [fx, fy] = [x.format || short, y.format || short];
  const parts = series.filter(one => one.points.length && !one.mark).map(one => {
    const top = one.points.reduce((best, point) => point[1] > best[1] ? point : best);
    const [first, last] = [one.points[0], one.points[one.points.length - 1]];
    const told = point => `${fy(point[1])} at ${fx(point[0])}`;
    return `${one.name || 'series'}: from ${told(first)} to ${told(last)}, highest ${told(top)}`;
  });
  return `${title}. ${parts.join('. ')}`;
}
