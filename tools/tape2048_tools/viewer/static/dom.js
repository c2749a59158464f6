// Elements, text and numbers. Text always becomes text nodes: recorded data is never markup.

// Tables with more columns are shown line by line on a narrow screen.
const STACKED = 4;

const SVG_TAGS = new Set(['svg', 'g', 'path', 'line', 'rect', 'circle', 'text', 'title']);

/** Make an element: el('a.name', {href: '#x', onclick: f}, 'text', child, [children]). */
export function el(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const node = SVG_TAGS.has(name)
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  if (classes.length) node.setAttribute('class', classes.join(' '));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true && !key.startsWith('aria-') ? '' : value);
  }
  node.append(...children.flat(Infinity).filter(one => one !== null && one !== undefined && one !== false));
  return node;
}

/** Set the text of a node that holds nothing else, without a new node, and only if the text differs. */
export function setText(node, text) {
  if (!node.firstChild) node.append(text);
  else if (node.firstChild.data !== text) node.firstChild.data = text;
}

export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(one => one !== null && one !== undefined && one !== false));
  return node;
}

const whole = new Intl.NumberFormat('en-US', {maximumFractionDigits: 0});
const compact = new Intl.NumberFormat('en-US', {notation: 'compact', maximumSignificantDigits: 3});

export function count(value) {
  return value === null || value === undefined || Number.isNaN(value) ? '–' : whole.format(value);
}

export function short(value) {
  return Math.abs(value) < 10000 ? String(Number(value.toPrecision(4))) : compact.format(value);
}

/** 512, 2K, 32K; empty for no tile. */
export const tileName = tile => tile >= 1024 ? `${tile / 1024}K` : String(tile || '');

/** 1 game, 2 games, 2 inaccuracies, 2 losses. */
export function counted(value, noun) {
  return `${count(value)} ${value === 1 ? noun : `${noun}s`.replace(/([^aeiou])ys$/, '$1ies').replace(/sss$/, 'sses')}`;
}

/** 83%, 4.2%, 0.03%; never rounded to 0 or 100%. */
export function percent(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const share = 100 * value;
  if (share === 0 || share === 100) return `${share}%`;
  if (share < 0.01) return '<0.01%';
  if (share >= 99.5) return `${Math.min(share, 99.9).toFixed(1)}%`;
  return `${share.toFixed(share >= 10 ? 0 : share >= 1 ? 1 : 2)}%`;
}

export function bytes(value) {
  let size = value || 0;
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (size < 1000) return `${size < 10 && unit !== 'B' ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} PB`;
}

export function seconds(value) {
  if (value === null || value === undefined) return '–';
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min']];
  for (const [length, unit] of parts) if (value >= length * 2) return `${Math.round(value / length)} ${unit}`;
  return `${Math.round(value)} s`;
}

/** 2026-01-31 12:05, UTC, of seconds since 1970 or of a text. */
export function moment(value) {
  if (value === null || value === undefined) return '–';
  const date = new Date(typeof value === 'number' ? value * 1000 : value);
  return Number.isNaN(date.getTime()) ? String(value) : date.toISOString().slice(0, 16).replace('T', ' ');
}

/** A value of a judge: points as whole numbers, probabilities with three digits. */
export function valued(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  return unit === 'points' ? count(value) : value.toFixed(3);
}

/** A critic's probabilities: 8K 83% · 16K 4.2%. */
export function odds(tiles, values) {
  return values ? tiles.map((tile, i) => `${tileName(tile)} ${percent(values[i])}`).join(' · ') : '–';
}

export function message(text, hint, kind) {
  return el(`div.message${kind ? `.${kind}` : ''}`, {role: kind === 'error' ? 'alert' : 'status'},
    el('p', null, text), hint ? el('p.soft', null, hint) : null);
}

/** A player's short name, with its full text on hover. */
export function player(one) {
  return el('bdi.text', {title: one.full}, one.player);
}

/** A table without the columns that are the same in every row: the caption has their values. */
export function varyingTable(caption, headings, rows) {
  const told = cell => cell instanceof Node ? cell.textContent : String(cell);
  const plain = heading => told(heading).replace(/^>| [↓↑]$/g, '');
  const same = headings.map((_, i) => i > 0 && rows.length > 1
    && rows.every(row => told(row[i]) === told(rows[0][i]) && !told(row[i]).endsWith('…')));
  const kept = list => list.filter((_, i) => !same[i]);
  const common = headings.flatMap((one, i) => same[i] && !['', '–'].includes(told(rows[0][i]))
    ? [`${plain(one)} ${told(rows[0][i])}`] : []);
  return table(common.length ? `${caption} · the same in every row: ${common.join(', ')}` : caption, kept(headings),
    rows.map(kept));
}

/** Names and values side by side. */
export function facts(pairs) {
  return el('dl.facts', null, pairs.filter(pair => pair && pair[1] !== null && pair[1] !== undefined)
    .map(([name, value]) => el('div', null, el('dt', null, name), el('dd', null, value))));
}

/** A table. A heading that starts with > is for numbers. Cells are text or nodes. */
export function table(caption, headings, rows, rowAttributes) {
  const numeric = headings.map(heading => typeof heading === 'string' && heading.startsWith('>'));
  const labels = headings.map(heading => typeof heading === 'string' ? heading.replace(/^>/, '') : heading);
  const heads = headings.map((heading, i) => typeof labels[i] === 'string' ? labels[i]
      : labels[i].textContent.replace(/ [↓↑]$/, ''));
  return el(headings.length > STACKED ? 'div.wide.stacked' : 'div.wide',
      {tabindex: 0, role: 'region', 'aria-label': caption},
    el('table', null, el('caption', null, caption),
      el('thead', null, el('tr', null, labels.map((label, i) =>
        el(numeric[i] ? 'th.n' : 'th', {scope: 'col', 'aria-sort': label.dataset && label.dataset.sorted}, label)))),
      el('tbody', null, rows.map((row, at) => el('tr', rowAttributes && rowAttributes(at), row.map((cell, i) =>
        i === 0 ? el('th', {scope: 'row'}, cell)
            : el(numeric[i] ? 'td.n' : 'td', {'data-head': heads[i]}, cell)))))));
}

/** A choice of a built-in player with settings: its fields, and its value, as `record --player` takes it. `others` are
 * further options [value, text], whose value is returned unchanged. */
export function playerChoice(players, label, others, onchange) {
  const known = new Map(players.map(one => [one.name, one]));
  const name = el('select', null, others.map(([value, text]) => el('option', {value}, text)),
    el('optgroup', {label: 'players'},
      players.map(one => el('option', {value: one.name, title: one.about}, one.name))));
  const settings = el('input', {autocomplete: 'off', spellcheck: 'false'});
  const field = el('label.long', {hidden: true}, 'Settings that differ from the defaults', settings);
  const value = () => known.has(name.value) && settings.value.trim() ? `${name.value}:${settings.value.trim()}`
    : name.value;
  name.addEventListener('change', () => {
    const one = known.get(name.value);
    field.hidden = !one || !one.settings;
    settings.placeholder = one ? one.settings : '';
    settings.value = '';
    if (onchange) onchange();
  });
  if (onchange) settings.addEventListener('change', onchange);
  return {nodes: [el('label', null, label, name), field], value, isPlayer: () => known.has(name.value)};
}

/** Save bytes or text as a file. */
export function download(parts, name) {
  const address = URL.createObjectURL(new Blob([parts]));
  el('a', {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** Call at most once a frame, with the last arguments. */
export function eachFrame(call) {
  let asked = 0;
  let last;
  return (...given) => {
    last = given;
    if (!asked) asked = requestAnimationFrame(() => { asked = 0; call(...last); });
  };
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
