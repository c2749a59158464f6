// The overview of a corpus: figures of one selection of its games, or of two.

import {askJson, refusalNode} from './api.js';
import {bytes, count, el, facts, fill, message, moment, percent, table, tileName} from './dom.js';
import {figure} from './charts.js';

const FILTERS = [
  ['min_score', 'score from'], ['max_score', 'score to'], ['min_steps', 'moves from'], ['max_steps', 'moves to'],
  ['min_tile', 'tile from'], ['max_tile', 'tile to'], ['model', 'model'], ['since', 'since'], ['until', 'until'],
];
const SELECTION_NAMES = ['where', 'session', 'player', ...FILTERS.map(one => one[0])];
const WAITING_MS = 700;

/** The parameters of a selection in a link. */
export function selectionOf(given, prefix = '') {
  return Object.fromEntries(SELECTION_NAMES.map(name => [prefix + name,
      given[prefix + name]]).filter(pair => pair[1]));
}

/** A form for a selection; `submit` gets the parameters. */
export function selectionForm(given, prefix, title, submit) {
  const field = (name, label, long) => el(`label${long ? '.long' : ''}`, null, label, el('input', {
    name: prefix + name, value: given[prefix + name] || '', autocomplete: 'off', spellcheck: 'false',
    placeholder: name === 'where' ? 'max_score >= 50000 AND highest_tile >= 8192' : name === 'since'
        || name === 'until' ? '2026-01-31' : '',
  }));
  const kept = ['session', 'player'].filter(name => given[prefix + name]).map(name =>
    el('label.line', null, el('input', {type: 'checkbox', name: prefix + name, value: given[prefix + name],
        checked: true}), `only this ${name}`));
  const open = FILTERS.some(([name]) => given[prefix + name]);
  return el('form.form', {'aria-label': title, onsubmit: event => {
    event.preventDefault();
    submit(Object.fromEntries(new FormData(event.target)));
  }}, field('where', title, true), kept, el('button', {type: 'submit'}, 'Show'),
  el('details', {open}, el('summary', null, 'More filters'),
      el('div.form', null, FILTERS.map(([name, label]) => field(name, label)))));
}

export function overviewPage(main, given, shell) {
  const body = el('div');
  let two = Boolean(given.two);
  const forms = el('div');
  const submit = change => shell.go('overview', {...given, ...blanks(), ...change, two: two ? '1' : ''});
  const compare = el('button', {type: 'button', 'aria-pressed': String(two), onclick: () => {
    two = !two;
    submit({...selectionOf(given), ...(two ? selectionOf(given, 'b.') : {})});
  }}, two ? 'Show one selection' : 'Compare two selections');
  const draftForms = () => fill(forms,
    selectionForm(given, '', two ? 'First selection: condition on games (SQL)' : 'Condition on games (SQL)',
        change => submit({...selectionOf(given, 'b.'), ...change})),
    two ? selectionForm(given, 'b.', 'Second selection: condition on games (SQL)',
        change => submit({...selectionOf(given), ...change})) : null, compare);
  draftForms();
  fill(main, el('h1', null, 'Overview'), el('section', {'aria-label': 'Selection'}, forms), body);
  const load = async () => {
    let document;
    try {
      document = await askJson('overview', given);
    } catch (error) {
      fill(body, refusalNode(error));
      return;
    }
    if (!body.isConnected) return;
    fill(body, overviewBody(document, given, sampleOf(given, two)));
    if (document.waiting) setTimeout(() => body.isConnected && load(), WAITING_MS);
  };
  return load();
}

function blanks() {
  return Object.fromEntries(['', 'b.'].flatMap(prefix => SELECTION_NAMES.map(name => [prefix + name, ''])));
}

/** Loads what takes rows, after the rest. */
function sampleOf(given, two) {
  return async () => {
    const second = Object.fromEntries(Object.entries(selectionOf(given, 'b.')).map(([name, value]) => [name.slice(2),
        value]));
    return Promise.all([askJson('sample', selectionOf(given)), ...(two ? [askJson('sample', second)] : [])]);
  };
}

/**
 * The figures of an overview. `loadSamples` resolves to what takes rows, one for each selection; null leaves it out.
 */
export function overviewBody(document, given, loadSamples) {
  const parts = document.selections;
  const names = parts.length > 1 ? ['first selection', 'second selection'] : ['games'];
  const found = [];
  if (document.waiting) {
    const rest = `${count(document.waiting_games)} games and ${count(document.waiting_rows)} rows`;
    found.push(message(`${count(document.waiting)} sessions are still to be read; by their manifests they hold `
        + `${rest}.`));
  }
  if (document.broken.length) {
    found.push(el('details.card', null, el('summary', null,
        `${count(document.broken.length)} sessions cannot be read`),
      el('ul', null, document.broken.slice(0, 50).map(one => el('li', null, `${one.name}: ${one.message}`)))));
  }
  if (!parts.some(part => part.games)) {
    if (!document.waiting) found.push(message('No game is selected.',
        'Record some with `tape2048 record`, or change the condition.'));
    return found;
  }
  parts.forEach((part, i) => found.push(el('section', null, parts.length > 1 ? el('h2', null, names[i]) : null,
      summaryOf(part))));
  const per = (values, width) => values.map((value, i) => [i * width, value]);
  const shares = (part, name) => part[name].map(value => value / Math.max(1, part.games));
  const samples = el('div.grid-2');
  found.push(el('div.grid-2', null,
    figure('Score', {series: parts.map((part,
        i) => ({name: names[i], kind: 'bars', points: per(shares(part, 'score_bins'), document.widths.score)})),
      barWidth: document.widths.score, x: {label: 'score'}, y: {label: 'share of games', format: percent, low: 0}}),
    figure('Length of games', {series: parts.map((part,
        i) => ({name: names[i], kind: 'bars', points: per(shares(part, 'steps_bins'), document.widths.steps)})),
      barWidth: document.widths.steps, x: {label: 'moves'}, y: {label: 'share of games', format: percent, low: 0}}),
    figure('Games that reach a tile', tileFigure(parts, names), 'With 95% intervals.'),
    figure('Games that still go on', {series: parts.map((part,
        i) => ({name: names[i], points: per(part.survival, document.widths.steps)})),
      x: {label: 'move'}, y: {label: 'share of games', format: percent, low: 0, high: 1}})), samples,
  throughputFigure(parts, names), parts.map((part, i) => el('section', null,
    el('h2', null, parts.length > 1 ? `Players of the ${names[i]}` : 'Players'),
        playersTable(part, given, parts.length > 1 ? ` of the ${names[i]}` : ''))));
  if (loadSamples) {
    fill(samples, message('Reading a few games…'));
    loadSamples().then(many => fill(samples, sampleFigures(many, names)), error => fill(samples, refusalNode(error)));
  }
  return found;
}

function summaryOf(part) {
  const spread = one => one.mean === undefined ? '–' : `${count(one.mean)} (${count(one.p10)}–${count(one.p90)})`;
  return facts([['games', count(part.games)], ['rows', count(part.rows)], ['moves', count(part.steps)],
      ['sessions', count(part.sessions)],
    ['size', bytes(part.bytes)], ['from', moment(part.started)], ['to', moment(part.ended)],
        ['mean score (10–90%)', spread(part.score)],
    ['best score', count(part.score.max)], ['mean length (10–90%)', spread(part.length)]]);
}

function tileFigure(parts, names) {
  const tiles = [...new Set(parts.flatMap(part => part.tiles.map(one => one.tile)))].sort((a, b) => a - b);
  const shift = i => parts.length > 1 ? (i - 0.5) * 0.24 : 0;
  return {pad: 0.5, x: {label: 'tile', ticks: tiles.map((_, i) => i), format: at => tileLabel(tiles[Math.round(at)])},
      y: {label: 'share of games', format: percent, low: 0, high: 1},
    series: parts.map((part, i) => ({name: names[i], kind: 'dots',
        points: part.tiles.map(one => [tiles.indexOf(one.tile) + shift(i), one.share, one.low, one.high])}))};
}

function tileLabel(tile) {
  return tile === undefined ? '' : tileName(tile);
}

function throughputFigure(parts, names) {
  if (!parts.some(part => part.throughput.length > 1)) return null;
  return figure('Throughput while sessions were recorded',
      {series: parts.map((part, i) => ({name: names[i],
      points: part.throughput.map(one => [one.at, one.steps_per_s])})),
    x: {label: 'time', format: clock(parts)}, y: {label: 'moves a second', low: 0}});
}

/** Times as short as the span of the figure lets them be. */
function clock(parts) {
  const times = parts.flatMap(part => part.throughput.map(one => one.at));
  const span = Math.max(...times) - Math.min(...times);
  const [from, to] = span < 7200 ? [11, 19] : span < 3 * 86400 ? [5, 16] : [0, 10];
  return at => new Date(at * 1000).toISOString().slice(from, to).replace('T', ' ');
}

function playersTable(part, given, name) {
  const tiles = part.players.length ? Object.keys(part.players[0].reach) : [];
  return table(`Games by player${name}; shares with 95% intervals`,
      ['player', '>sessions', '>games', '>mean score', ...tiles.map(tile => `>${tile}`)],
    part.players.map(one => [given === null ? el('span.text', null, one.player)
        : el('a.text', {href: `#games?player=${one.id}`}, one.player), count(one.sessions), count(one.games),
        count(one.mean_score),
      ...tiles.map(tile => el('span', null, percent(one.reach[tile].share),
          el('small', null, `${percent(one.reach[tile].low)}–${percent(one.reach[tile].high)}`)))]));
}

function sampleFigures(many, names) {
  const told = many.some(one => one.games) ? null
      : message('No game could be read for these figures.', many[0].unread[0], 'error');
  if (told) return [told];
  const tiles = [...new Set(many.flatMap(one => one.first.map(first => first.tile)))].sort((a, b) => a - b);
  const shift = i => many.length > 1 ? (i - 0.5) * 0.24 : 0;
  const from = `From ${many.map(one => count(one.games)).join(' and ')} games, evenly spread.`;
  return [
    figure('Move at which a tile first appears',
        {pad: 0.5, x: {label: 'tile', ticks: tiles.map((_, i) => i), format: at => tileLabel(tiles[Math.round(at)])},
        y: {label: 'move', low: 0},
      series: many.map((one, i) => ({name: names[i], kind: 'dots',
          points: one.first.map(first => [tiles.indexOf(first.tile) + shift(i), first.p50, first.p10, first.p90])}))},
          `${from} The median, and where 10% and 90% of them had it.`),
    figure('Share of each move', {pad: 0.5,
        x: {label: 'move', ticks: [0, 1, 2, 3], format: at => ['up', 'down', 'left', 'right'][Math.round(at)] || ''},
        y: {label: 'share', format: percent, low: 0},
      series: many.map((one, i) => ({name: names[i], kind: 'dots',
          points: one.moves.map((share, move) => [move + shift(i), share])}))},
    from), many.map((one, i) => criticFigure(one, many.length > 1 ? `, ${names[i]}` : ''))];
}

/** What the critic predicts at two moments of the same games, and how many of them reach the tile. */
function criticFigure({critic, games}, name) {
  const title = `The critic: predicted and reached${name}`;
  const points = critic.points;
  if (!points.length) return critic.remark ? message(title, critic.remark) : null;
  const moment = one => one.half ? `${tileName(one.tile / 2)}→${tileName(one.tile)}` : tileName(one.tile);
  return figure(title, {pad: 0.5,
    x: {label: 'tile', ticks: points.map((_, i) => i), format: at => points[Math.round(at)]
      ? moment(points[Math.round(at)]) : ''},
    y: {label: 'share of games', format: percent, low: 0, high: 1},
    series: [{name: 'predicted', kind: 'dots', points: points.map((one, i) => [i - 0.12, one.predicted])},
      {name: 'reached', kind: 'dots', points: points.map((one, i) => [i + 0.12, one.share, one.low, one.high])}]},
  `From ${count(games)} games. Predicted: means over their first boards and (→) over the boards on which half the `
    + `tile first appears. Reached: shares of these games, with 95% intervals. ${critic.remark || ''}`);
}
