// The overview of a corpus: figures of one selection of its games, or of two.

import {askJson, refusalNode} from './api.js';
import {bytes, count, counted, el, facts, fill, message, moment, percent, player, short, table, tileName} from './dom.js';
import {figure} from './charts.js';

const FILTERS = [
  ['min_score', 'score from'], ['max_score', 'score to'], ['min_steps', 'moves from'], ['max_steps', 'moves to'],
  ['min_highest_tile', 'tile from'], ['max_highest_tile', 'tile to'], ['model', 'model'], ['since', 'since'],
  ['until', 'until'],
];
const SELECTION_NAMES = ['where', 'session', 'player', ...FILTERS.map(one => one[0])];
const WAITING_MS = 700;
const TILES_COMPARED = 6;
const FIRST_TILE = 256; // smaller tiles are listed only if they are the highest tile of a game

/** The parameters of a selection in a link. */
export function selectionOf(given, prefix = '') {
  return Object.fromEntries(SELECTION_NAMES.map(name => [prefix + name, given[prefix + name]]).filter(pair => pair[1]));
}

/** The same parameters with another prefix. */
function moved(selection, from, to) {
  return Object.fromEntries(Object.entries(selection).map(([name, value]) => [to + name.slice(from.length), value]));
}

/** A choice of a player: `change` gets its label, or an empty text for `none`. */
export function playerSelect(label, none, known, chosen, change) {
  const others = known.total - known.players.length;
  const listed = known.players.filter(one => one.label);
  if (chosen && !listed.some(one => one.label === chosen)) listed.push({label: chosen, name: chosen});
  return el('label', null, label, el('select', {onchange: event => change(event.target.value)},
    el('option', {value: ''}, none),
    listed.map(one => el('option', {value: one.label, title: one.full, selected: one.label === chosen}, one.name)),
    others > 0 ? el('option', {disabled: true}, `and ${count(others)} more: use a condition`) : null));
}

/** A form for a selection, folded if it selects nothing; `submit` gets the parameters. */
export function selectionForm(given, prefix, title, submit) {
  const field = (name, label, long) => el(`label${long ? '.long' : ''}`, null, label, el('input', {
    name: prefix + name, value: given[prefix + name] || '', autocomplete: 'off', spellcheck: 'false',
    placeholder: name === 'where' ? 'score >= 50000 AND highest_tile >= 8192' : name === 'since'
        || name === 'until' ? '2026-01-31' : '',
  }));
  const session = given[prefix + 'session'];
  const kept = session ? el('label.line', null, el('input', {type: 'checkbox', name: prefix + 'session',
    value: session, checked: true}), 'only this session') : null;
  const open = ['where', 'session', ...FILTERS.map(one => one[0])].some(name => given[prefix + name]);
  return el('details', {open}, el('summary', null, title),
    el('form.form', {'aria-label': title, onsubmit: event => {
      event.preventDefault();
      submit(Object.fromEntries(new FormData(event.target)));
    }}, FILTERS.map(([name, label]) => field(name, label)), field('where', 'Condition (SQL)', true), kept,
    el('button', {type: 'submit'}, 'Show')));
}

export function overviewPage(main, given, shell) {
  const body = el('div');
  const two = Boolean(given.two);
  const [first, second] = [selectionOf(given), two ? selectionOf(given, 'b.') : {}];
  const submit = change => shell.go('overview', {...first, ...second, two: two ? '1' : '', ...change});
  const blank = prefix => Object.fromEntries(SELECTION_NAMES.filter(name => name !== 'player').map(name =>
    [prefix + name, '']));
  const slot = el('span', {hidden: true});
  const choose = known => slot.replaceWith(
    playerSelect('Player', 'all players', known, given.player, label => submit({player: label})),
    playerSelect('Compared with', two && !given['b.player'] ? 'the second selection' : 'nothing', known,
      two ? given['b.player'] : '', label => submit({...(label && !two ? moved(first, '', 'b.') : {}),
        'b.player': label, two: label || Object.keys(second).length > 1 ? '1' : ''})));
  const compare = el('button', {type: 'button', onclick: () =>
    two ? shell.go('overview', first) : submit({...moved(first, '', 'b.'), two: '1'})},
  two ? 'Show one selection' : 'Compare two selections');
  fill(main, el('h1', null, two ? 'Compare' : 'Overview'), el('div.selection', {role: 'group', 'aria-label': 'Selection'},
    el('div.form', null, slot, compare),
    selectionForm(given, '', two ? 'Conditions on the first selection' : 'Conditions',
      change => submit({...blank(''), ...change})),
    two ? selectionForm(given, 'b.', 'Conditions on the second selection',
      change => submit({...blank('b.'), ...change})) : null), body);
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
  const choice = askJson('players').then(known => { if (known.total > 1 || two) choose(known); }, () => {});
  return Promise.all([choice, load()]);
}

/** Load the figures that need rows, after the rest. */
function sampleOf(given, two) {
  return async () => Promise.all([askJson('sample', selectionOf(given)),
    ...(two ? [askJson('sample', moved(selectionOf(given, 'b.'), 'b.', ''))] : [])]);
}

/** The names of two selections: their players, or their conditions if the players are the same. */
function namesOf(parts, given) {
  const players = parts.map(part => part.players.length
    ? part.players.map(one => one.player).sort().slice(0, 2).join(', ') + (part.players_in_all > 2 ? ', …' : '') : 'no game');
  if (players[0] !== players[1]) return players;
  const labels = new Map([['where', ''], ['session', 'session'], ...FILTERS]);
  return parts.map((_, i) => {
    const told = [...labels].filter(([name]) => given[(i ? 'b.' : '') + name]).map(([name, label]) =>
      `${label} ${given[(i ? 'b.' : '') + name]}`.trim());
    return told.join(', ') || 'all games';
  });
}

/** The figures of an overview. `loadSamples` resolves to the data that needs rows, for each selection; null omits it. */
export function overviewBody(document, given, loadSamples) {
  const parts = document.selections;
  const compared = parts.length > 1;
  const names = compared ? namesOf(parts, given) : ['games'];
  const found = [];
  if (document.waiting) {
    const rest = `${count(document.waiting_games)} games and ${count(document.waiting_rows)} rows`;
    found.push(message(`${count(document.waiting)} sessions are not read yet. Their manifests list ${rest}.`));
  }
  if (document.broken.length) {
    found.push(el('details.card', null, el('summary', null, `${count(document.broken.length)} sessions cannot be read`),
      el('ul', null, document.broken.slice(0, 50).map(one => el('li', null, `${one.name}: ${one.message}`)))));
  }
  found.push(...[...new Set(parts.map(part => part.left_out).filter(Boolean))].map(text => message(`Left out: ${text}.`)));
  if (!parts.some(part => part.games)) {
    if (!document.waiting) found.push(message('No game is selected.',
        'Record some with `tape2048 record`, or change the condition.'));
    return found;
  }
  const lines = parts.flatMap((part, i) => part.lines.map((line, at) => ({...line,
    name: compared ? names[i] : part.players[at].player,
    select: compared ? moved(selectionOf(given, i ? 'b.' : ''), i ? 'b.' : '', '') : part.players[at].select})));
  const {widths, phases} = document;
  const log = !widths.score; // a bin is an eighth of a doubling
  const first = log ? Math.min(...lines.map(line => line.score_bins.findIndex(Boolean))) : 0;
  const per = (values, width) => values.map((value, i) => [i * width, value]);
  const more = compared ? 0 : parts[0].players_in_all - lines.length;
  const left = more > 0 ? `The ${lines.length} players with the most games.` : '';
  const samples = el('div.grid-2');
  const judged = el('div');
  if (compared) {
    const players = parts.map(part => part.players.length === 1 && part.players[0].full);
    found.push(comparisonParts(document.comparison, names, players[0] && players[1] && players[0] !== players[1]), judged);
  }
  found.push(el('div.grid-2', null, parts.map((part, i) => headline(part, compared ? names[i] : null))),
    parts.map((part, i) => part.players.length > 1 || !compared ? el('section', null,
      el('h2', null, compared ? `Players of ${names[i]}` : 'Players'),
      playersTable(part, given, compared ? ` of ${names[i]}` : '')) : null),
    el('div.grid-2', null, figure('Games that reach a tile', reachPlot(lines), `With 95% intervals. ${left}`),
      deathsFigure(lines, phases, given, left),
      figure('Score', {series: lines.map(line => ({name: line.name, kind: lines.length > 2 ? 'line' : 'bars',
        points: per(line.score_bins.map(value => value / Math.max(1, line.games)), widths.score || 1).slice(first)})),
      barWidth: widths.score || 1, x: {label: 'score', ...(log && {format: at => short(Math.round(2 ** (at / 8))),
        ticks: [2, 3, 4, 5, 6].map(digits => 8 * Math.log2(10 ** digits)).filter(at => at > first)})},
      y: {label: 'share of games', format: percent, low: 0}}, left),
      figure('Games longer than N moves', {series: lines.map(line => ({name: line.name,
        points: per(line.survival, widths.steps)})), x: {label: 'N', format: count},
      y: {label: 'share of games', format: percent, low: 0, high: 1}}, left)), samples);
  if (loadSamples) {
    fill(samples, message('Reading a few games…'));
    loadSamples().then(many => {
      fill(samples, sampleFigures(many, names));
      if (compared) fill(judged, luckAndLoss(many, names));
    }, error => fill(samples, refusalNode(error)));
  }
  return found;
}

/** The share of the games that reach a phase that end in it, by player. A point links to these games, at their last move. */
function deathsFigure(lines, phases, given, left) {
  const link = ({select}, at) => {
    const {first, last} = phases.find(one => one.sum === at);
    return `#games?${new URLSearchParams({...select, min_steps: first, max_steps: last, at: 'end'})}`;
  };
  return figure('Where games end', {height: 230,
    series: lines.map(line => ({name: line.name, select: line.select, points: line.deaths.map(one =>
      [phases[one.phase].sum, one.share, one.low, one.high])})),
    x: {label: 'sum of tiles', format: at => tilesOfSum(at), ticks: phases.map(one => one.sum).filter((_, i) => i % 8 === 0)},
    y: {label: 'share of the games that get this far', format: percent, low: 0}, link: given ? link : null},
  `The axis shows the largest tiles of the sum. A move adds 2.2 on average. ${given ? 'Click a point to list the games that end there. ' : ''}${left}`);
}

/** 16K+8K+1K: different tiles that make up a sum. */
const tilesOfSum = sum => [...Array(13).keys()].map(i => 65536 >> i).filter(tile => sum & tile).map(tileName).join('+') || '0';

/** A mean above its interval. */
const meanOf = one => one.mean === undefined ? '–'
  : el('span', null, count(one.mean), one.high === undefined ? null : el('small', null, `± ${count(one.high - one.mean)}`));

/** The main numbers of a selection, and the others folded. A mean score is shown for a single player only. */
function headline(part, name) {
  const {best} = part;
  const range = one => one.mean === undefined ? '–' : `${count(one.p10)} to ${count(one.p90)} in 80% of the games`;
  const figures = [['games', count(part.games), `${count(part.steps)} moves in ${counted(part.sessions, 'session')}`],
    part.players_in_all === 1 && ['mean score', count(part.score.mean) + (part.games > 1 ? ` ± ${count(part.score.high - part.score.mean)}` : ''),
      range(part.score)],
    best && ['best game', el('a', {href: `#${best.session}/${best.run}/0`}, count(best.score)),
      [`tile ${best.tile}, by `, player(best)]]];
  return el('section', null, name ? el('h2.name', null, name) : null,
    el('dl.headline', null, figures.filter(Boolean).map(([label, value, note]) =>
      el('div', null, el('dt', null, label), el('dd', null, el('b', null, value), el('small', null, note))))),
    el('details', null, el('summary', null, 'More'), facts([
      part.rows === part.steps ? null : ['rows', count(part.rows)],
      ['mean length', `${count(part.length.mean)} moves (${range(part.length)})`], ['size', bytes(part.bytes)],
      ['from', `${moment(part.started)} UTC`], ['to', `${moment(part.ended)} UTC`]])));
}

/** The tiles of parts; of several parts, only tiles whose share each can have. */
function tilesOf(parts) {
  const tiles = [...new Set(parts.flatMap(part => part.tiles.map(one => one.tile)))].sort((a, b) => a - b);
  return tiles.filter(tile => parts.length === 1 || tile >= Math.min(FIRST_TILE, tiles[tiles.length - 1] / 8));
}

function reachPlot(lines) {
  const tiles = tilesOf(lines);
  const width = 0.8 / lines.length;
  return {barWidth: width, height: 230,
    x: {label: 'tile', low: -0.5, high: tiles.length - 0.5, ticks: tiles.map((_, i) => i), format: at => tileName(tiles[Math.round(at)])},
    y: {label: 'share of games', format: percent, low: 0, high: 1},
    series: lines.map((line, i) => ({name: line.name, kind: 'bars',
      points: line.tiles.filter(one => tiles.includes(one.tile)).map(one => [tiles.indexOf(one.tile) - 0.4 + i * width, one.share, one.low, one.high])}))};
}

/** A share above its interval. */
function between(one) {
  return el('span', null, percent(one.share), el('small', null, `${percent(one.low)}–${percent(one.high)}`));
}

/** A signed number, +26.1, of points or of percentage points. */
const plus = (value, digits = 0) => `${value > 0 ? '+' : ''}${digits ? value.toFixed(digits) : count(value)}`;

/** A difference above its interval, bold if the interval leaves out 0: of shares in percentage points. */
function differenceOf({difference, low, high}, ofShares) {
  const told = value => ofShares ? plus(100 * value, 1) : plus(value);
  return el(low > 0 || high < 0 ? 'b' : 'span', null, told(difference), low === undefined ? null
    : el('small', null, ofShares ? `${told(low)} to ${told(high)}` : `± ${count((high - low) / 2)}`));
}

/** The answer, and what it consists of: which of two selections scores more, where its points come from, and how games end. */
function comparisonParts(found, names, ofPlayers) {
  if (!found) return message('No game is selected on one side: there is nothing to compare.');
  const {score, ranges} = found;
  const [more, less] = score.difference < 0 ? [names[1], names[0]] : names;
  const sure = Math.max(score.above, 1 - score.above);
  const clear = score.low > 0 || score.high < 0;
  const half = (score.high - score.low) / 2;
  const times = Math.ceil((half / score.difference) ** 2);
  const verdict = score.low === undefined ? ' A single game has no interval.'
    : (clear ? '' : ' The difference is not clear.')
      + (ofPlayers ? ` ${clear ? 'It' : more} is stronger with ${sure > 0.9995 ? 'over ' : ''}${percent(sure)} probability.` : '')
      + (clear || times > 1000 ? '' : ` About ${times} times as many games would tell.`);
  const [a, b] = found.games.map(count);
  const how = found.paired ? `${a} pairs of games with the same seeds; Student's t interval of 95%.`
    : `${a} and ${b} games, taken as independent; Welch's t interval of 95%.`;
  const nameOf = one => one.tile ? `${tileName(one.tile)} to ${one.after ? tileName(one.after) : 'the end'}`
    : `start to ${tileName(one.after)}`;
  const most = ranges.reduce((best, one) => one.difference * score.difference > best.difference * score.difference ? one : best);
  const part = most.difference / score.difference;
  return [el('section', null, el('p.answer', null, el('bdi', null, more), ' scores ',
    el('b', null, count(Math.abs(score.difference)), score.low === undefined ? '' : ` ± ${count(half)}`), ' more than ',
    el('bdi', null, less), `.${verdict}`), el('p.soft', null, how,
    found.shared ? ` ${counted(found.shared, 'game')} in both selections.` : '')),
  ranges.length < 2 ? null : el('section', null, el('h2', null, 'Where the difference comes from'),
    clear && part < 1 ? el('p', null, `${percent(part)} of it is scored from ${nameOf(most)}.`) : null,
    table('Points by the highest tile at the time, and games that end there; with 95% intervals',
      ['from', '>points', ...names.map(name => `>${name} ends`)], ranges.map(one =>
        [nameOf(one), differenceOf(one), ...one.ends.map(share => one.after && share ? between(share) : '–')]))),
  el('section', null, table('Games that reach a tile, and the difference in percentage points; with 95% intervals',
    ['tile', ...names.map(name => `>${name}`), '>difference'], found.tiles.slice(-TILES_COMPARED).reverse().map(one =>
      [tileName(one.tile), ...one.shares.map(between), differenceOf(one, true)])))];
}

/** Mean luck and loss of the judged games of two selections. */
function luckAndLoss(many, names) {
  const sums = many.map(one => one.sums);
  if (!sums.every(one => one && one.games)) return null;
  const same = sums[0].judged[0] === sums[1].judged[0];
  const difference = ([a, b]) => {
    const [more, half] = [a.mean - b.mean, Math.hypot(a.high - a.mean, b.high - b.mean)];
    return same ? [differenceOf({difference: more, low: more - half, high: more + half})] : [];
  };
  return el('section', null, el('h2', null, 'Luck and loss'), table('Points per game, with 95% intervals',
    ['sum', ...names.map(name => `>${name}`), ...(same ? ['>difference'] : [])], ['luck', 'loss'].map(name =>
      [name, ...sums.map(one => meanOf(one[name])), ...difference(sums.map(one => one[name]))])),
  sums.map((one, i) => el('p.soft', null, el('bdi', null, names[i]), `: ${counted(one.games, 'game')}. ${one.judged.join(' ')}`)),
  same ? null : el('p.soft', null, 'These judges have different measures. To compare, run '
    + '`tape2048 annotate ROOT --force --judge PLAYER`, with the same judge for both.'));
}

/** The players with the most games, each with a link to its comparison with the first player. */
function playersTable(part, given, name) {
  const tiles = part.players.length ? Object.keys(part.players[0].reach) : [];
  const link = (page, select) => `#${page}?${new URLSearchParams(select)}`;
  const linked = given !== null && !given.two;
  const compared = (one, i) => {
    const other = part.players[i ? 0 : 1];
    return linked && other ? [el('a', {href: link('overview', {...one.select, two: '1', ...moved(other.select,
      '', 'b.')}), 'aria-label': `Compare ${one.player} with ${other.player}`, title: `with ${other.player}`},
    'compare')] : [];
  };
  const more = part.players_in_all - part.players.length;
  return [table(`Games by player${name}; with 95% intervals`,
    ['player', '>games', '>mean score', ...tiles.map(tile => `>${tile}`), ...(linked && part.players[1] ? [''] : [])],
    part.players.map((one, i) => [given === null ? player(one)
      : el('a.text', {href: link('games', one.select), title: one.full}, one.player), count(one.games),
    meanOf(one.score), ...tiles.map(tile => between(one.reach[tile])), ...compared(one, i)])),
  more > 0 ? el('p.soft', null, `and ${counted(more, 'more player')}, each with fewer games`) : null,
  el('details', null, el('summary', null, 'Names in full'), facts(part.players.map(one =>
    [el('bdi', null, one.player), el('bdi', null, one.full)])))];
}

function sampleFigures(many, names) {
  const [unread] = many.flatMap(one => one.unread);
  if (unread && !many.some(one => one.games)) return [message('No game could be read for these figures.', unread, 'error')];
  return many.map((one, i) => criticFigure(one, many.length > 1 ? `, ${names[i]}` : ''));
}

/** The critic's predictions at two moments of the same games, and the share of games that reach the tile. */
function criticFigure({critic, games}, name) {
  const title = `The critic: predicted and reached${name}`;
  const points = critic.points;
  if (!points.length) return critic.remark ? message(title, critic.remark) : null; // no game of its player
  const moment = one => one.half ? `${tileName(one.tile / 2)}→${tileName(one.tile)}` : tileName(one.tile);
  return figure(title, {pad: 0.5,
    x: {label: 'tile', ticks: points.map((_, i) => i), format: at => points[Math.round(at)]
      ? moment(points[Math.round(at)]) : ''},
    y: {label: 'share of games', format: percent, low: 0, high: 1},
    series: [{name: 'predicted', kind: 'dots', points: points.map((one, i) => [i - 0.12, one.predicted])},
      {name: 'reached', kind: 'dots', points: points.map((one, i) => [i + 0.12, one.share, one.low, one.high])}]},
  `From ${count(games)} games of ${critic.players}. Predicted: means over their first boards and (→) over the boards on which half the `
    + `tile first appears. Reached: shares of these games, with 95% intervals.`);
}
