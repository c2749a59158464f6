// The lists of sessions and of games: sorted, filtered, page by page.

import {askJson, refusalNode} from './api.js';
import {bytes, count, counted, el, fill, message, odds, percent, player, tileName, varyingTable} from './dom.js';
import {playerSelect, selectionForm, selectionOf} from './overview.js';
import {smallBoard} from './tiles.js';

const WAITING_LIST_MS = 1000;

/** A heading that sorts by a column. */
function sorter(label, name, given, normal, go) {
  const sorted = (given.sort || normal) === name;
  const falling = (given.desc || '1') === '1';
  return el('button.sort', {type: 'button', 'data-sorted': sorted ? (falling ? 'descending' : 'ascending') : null,
    onclick: () => go({sort: name, desc: sorted && falling ? '0' : '1', page: ''})}, label,
  sorted ? (falling ? ' ↓' : ' ↑') : '');
}

function pager(total, given, rows, go) {
  const page = Number(given.page || 0);
  const last = Math.max(0, Math.ceil(total / rows) - 1);
  const turn = (label, to, off) => el('button', {type: 'button', disabled: off, onclick: () => go({page: String(to)})}, label);
  return el('nav.pager', {'aria-label': 'Pages of the list'}, turn('← Back', page - 1, page <= 0),
    el('span', null, `page ${count(page + 1)} of ${count(last + 1)} · ${count(total)} in all`), turn('Next →', page + 1, page >= last));
}

/**
 * Ask for the critic's opinion of sessions, or of games (session/run), after the list is shown, since it reads a row
 * of each game. `show(tiles, odds, at, same)` gets the opinion of each. Return a line for remarks.
 */
function askCritic(keys, waiting, show) {
  const note = el('p.soft.critic-note', {role: 'status'});
  if (keys.length && !waiting) {
    askJson('opinions', {of: keys.join(',')}).then(found => {
      const told = found.odds.map((one, i) => found.known[i] ? one : null); // not of players that it does not know
      const same = found.thresholds.map((_, k) => keys.length > 1
        && new Set(told.map(one => one ? percent(one[k]) : '')).size === 1 && told[0]);
      keys.forEach((_, i) => show(found.thresholds, told[i], i, same));
      const common = odds(found.thresholds.filter((_, k) => same[k]), told[0] && told[0].filter((_, k) => same[k]));
      fill(note, [common.length > 1 ? `Halfway through, the critic gives every row: ${common}.` : '', found.remark,
        found.unread].filter(Boolean).join(' '));
    }, error => {
      keys.forEach((_, i) => show([], null, i, []));
      fill(note, `No critic: ${error.message}`);
    });
  }
  return note;
}

async function listPage(main, body, name, given, draw) {
  let document;
  try {
    document = await askJson(name, given);
  } catch (error) {
    fill(body, refusalNode(error));
    return;
  }
  if (!body.isConnected) return;
  fill(body, document.waiting ? message(`${count(document.waiting)} sessions are not read yet.`) : null, draw(document));
  if (document.waiting) setTimeout(() => body.isConnected && listPage(main, body, name, given, draw), WAITING_LIST_MS);
}

export function sessionsPage(main, given, shell, about) {
  const body = el('div');
  const again = change => shell.go('sessions', {...given, ...change});
  const query = el('input', {name: 'q', value: given.q || '', autocomplete: 'off', placeholder: 'part of a name or a player'});
  fill(main, el('h1', null, 'Sessions'), el('section', null, el('form.form', {role: 'search', onsubmit: event => {
    event.preventDefault();
    again({q: query.value, page: ''});
  }}, el('label.long', null, 'Search', query), el('button', {type: 'submit'}, 'Show')), body));
  const sort = (label, name) => sorter(label, name, given, 'name', again);
  return listPage(main, body, 'sessions', {desc: '1', ...given}, document => {
    const tiles = document.tiles.map(Number);
    const cells = document.rows.map(() => tiles.map(() => el('small.odds', null, '…')));
    const others = document.rows.map(() => el('small.odds'));
    const note = askCritic(document.rows.map(one => one.id), document.waiting, (known, odds, at) => {
      cells[at].forEach((cell, i) => fill(cell, odds && known.includes(tiles[i])
        ? percent(odds[known.indexOf(tiles[i])]) : ''));
      const rest = odds ? known.filter(tile => !tiles.includes(tile)) : [];
      fill(others[at], rest.map(tile => `${tileName(tile)} ${percent(odds[known.indexOf(tile)])}`).join(' · '));
    });
    return [
      document.total ? varyingTable('Sessions. Small numbers: the critic\'s probabilities halfway through the games',
        [sort('session', 'name'), sort('player', 'player'), right(sort('games', 'games')),
          right(sort('rows', 'rows')), right(sort('mean score', 'mean_score')), right(sort('best', 'best_score')),
          ...tiles.map(tile => `>${tileName(tile)}`), right(sort('size', 'bytes'))],
        document.rows.map((one, row) => [el('span', null, el('a', {href: `#games?session=${one.id}`}, one.name), others[row]),
          player(one), right(count(one.games)), right(count(one.rows)),
          right([count(one.mean_score), one.mean_score_error && el('small', null, `± ${count(one.mean_score_error)}`)]), right(count(one.best_score)),
          ...tiles.map((tile, i) => el('span', null, percent(one.reach[tile]), cells[row][i])),
          right(bytes(one.bytes))])) : message('No session has this name or player.'),
      note,
      pager(document.total, given, about.page_rows, again),
      document.broken.length ? el('details', null,
        el('summary', null, `${count(document.broken.length)} sessions cannot be read`),
        el('ul', null, document.broken.slice(0, 100).map(one => el('li', null, `${one.name}: ${one.message}`))))
        : null];
  });
}

const right = text => el('span.right', null, text);

const SORTS = [['score', 'score'], ['steps', 'length'], ['highest_tile', 'highest tile'], ['luck', 'luck'],
  ['loss', 'loss'], ['mistakes', 'mistakes'], ['blunders', 'blunders'], ['session', 'session'], ['run_id', 'number']];

export function gamesPage(main, given, shell, about) {
  const body = el('div');
  const again = change => shell.go('games', {...given, page: '', ...change});
  const cleared = Object.fromEntries(Object.keys(selectionOf(given)).map(name => [name, '']));
  // Choose a game from the list, to show it beside another game.
  const choosing = /^[0-9a-f]{10}\/\d+$/.test(given.beside || '') ? given.beside : null;
  const linkOf = one => choosing ? `#${choosing}?beside=${one.session}/${one.run}`
    : `#${one.session}/${one.run}/${given.at === 'end' ? Math.max(one.steps - 1, 0) : 0}`;
  const [sorted, falling] = [given.sort || 'score', (given.desc || '1') === '1'];
  const slot = el('span', {hidden: true});
  const asList = given.view === 'list';
  fill(main, el('h1', null, choosing ? 'Choose a game' : 'Games'), choosing ? el('p.lead', null,
    `to compare it with game ${choosing.split('/')[1]}, or `, el('a', {href: `#${choosing}`}, 'go back to it')) : null,
  el('div.selection', {role: 'group', 'aria-label': 'Selection'}, el('div.form', null,
    slot,
    el('label', null, 'Sorted by', el('select', {onchange: event => again({sort: event.target.value})},
      SORTS.map(([value, text]) => el('option', {value, selected: value === sorted}, text)))),
    el('button', {type: 'button', onclick: () => again({desc: falling ? '0' : '1'})},
      falling ? '↓ highest first' : '↑ lowest first'),
    el('button', {type: 'button', onclick: () => again({view: asList ? '' : 'list'})}, asList ? 'Gallery' : 'List')),
  selectionForm(given, '', 'Conditions', change => again({...cleared, player: given.player || '', ...change}))), body);
  const sort = (label, name) => sorter(label, name, given, 'score', again);
  const choice = askJson('players').then(known => {
    if (known.total > 1) slot.replaceWith(playerSelect('Player', 'all players', known, given.player,
      label => again({player: label})));
  }, () => {});
  const list = listPage(main, body, 'games', {desc: '1', ...given}, document => {
    const of = document.rows.map(one => `${one.session}/${one.run}`).join(',');
    const shown = el('div');
    const turn = pager(document.total, given, about.page_rows, again);
    if (!document.total) return message('No game meets the condition.');
    const critic = document.rows.map(() => el('span.odds', null, '…'));
    const note = asList ? askCritic(document.rows.map(one => `${one.session}/${one.run}`), document.waiting,
      (tiles, found, at, same) => fill(critic[at], odds(tiles.filter((_, k) => !same[k]),
        found && found.filter((_, k) => !same[k])))) : null;
    const draw = (cards, judged) => fill(shown, judgedBy(judged), asList
      ? el('section', null, gamesTable(document.rows, cards, critic, linkOf, sort)) : gallery(document.rows, cards, linkOf),
    judged.length ? null : el('p.soft', null,
      'To show loss, luck and mistakes, run `tape2048 annotate ROOT`.'));
    if (asList) draw(document.rows.map(() => ({})), []);
    else fill(shown, gallery(document.rows, document.rows.map(() => null), linkOf));
    if (!document.waiting) {
      askJson('cards', {of}).then(found => draw(found.cards, found.judged), error => shown.append(refusalNode(error)));
    }
    return [shown, note, turn];
  });
  return Promise.all([choice, list]);
}

/** The start of a session, from its name: 2026-01-31 12:05:07. */
const startOf = name => name.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z.*/, '$1-$2-$3 $4:$5:$6');

/** The judges of losses, then warnings. */
export const judgedBy = ([judges, ...warnings]) => [judges ? el('p.soft', null, judges) : null,
  warnings.map(text => message(text, null, 'warn'))];

const SUMS = ['luck', 'loss', 'mistakes', 'blunders'];
const GRADES = new Set(SUMS.slice(2));

const sumOf = (one, name) => one[name] === undefined || GRADES.has(name) && one.graded === false ? '–'
  : count(one[name]);

function gamesTable(rows, cards, critic, linkOf, sort) {
  const known = cards.some(one => one.loss !== undefined);
  return varyingTable('Games', ['game', right(sort('score', 'score')), right(sort('highest tile', 'highest_tile')),
    right(sort('moves', 'steps')), ...(known ? SUMS.map(name => right(sort(name, name))) : []),
    'player', sort('session', 'session'), 'critic, halfway'],
  rows.map((one, i) => [el('a', {href: linkOf(one)}, `game ${one.run}`), right(count(one.score)), right(String(one.tile)),
    right(count(one.steps)), ...(known ? SUMS.map(name => right(sumOf(cards[i], name))) : []),
    player(one), el('span', {title: one.name}, startOf(one.name)), critic[i]]));
}

const brief = new Intl.NumberFormat('en-US', {notation: 'compact', maximumFractionDigits: 1, signDisplay: 'exceptZero'});

/**
 * Games as cards: the last board, the score over the moves, and the facts of `cards`; null: not known yet. The sums
 * of a judge that may be weaker than the player are left out.
 */
export function gallery(rows, cards, linkOf) {
  return el('ul.gallery', null, rows.map((one, i) => {
    const card = cards[i];
    const score = `${count(one.score)} points`;
    const isJudged = card && card.loss !== undefined && !card.weak;
    return el('li', null, el('a', {href: linkOf(one)},
      card && card.exps ? smallBoard(card.exps, `Game ${one.run}`) : el('div.board.small', null, card ? card.error || 'no board' : ''),
      el('span.facts-of-game', null, el('b', null, count(one.score)), spark(card ? card.spark : [], score),
        el('span', null, `${tileName(one.tile)} · ${count(one.steps)} moves`),
        isJudged ? [el('span', null, `luck ${brief.format(card.luck)} · loss ${brief.format(-card.loss)}`),
          card.graded === false ? el('span', null, 'uncalibrated')
            : el('span', null, `${counted(card.mistakes, 'mistake')} · ${counted(card.blunders, 'blunder')}`)] : null,
        player(one))));
  }));
}

/** A curve without axes. */
function spark(points, label) {
  const top = Math.max(...points, 1);
  const d = points.map((value, i) => `${i ? 'L' : 'M'}${(i / Math.max(1, points.length - 1) * 100).toFixed(1)} `
    + (27 - value / top * 25).toFixed(1)).join('');
  return el('svg.spark', {viewBox: '0 0 100 28', preserveAspectRatio: 'none', 'aria-hidden': true},
    el('title', null, label), el('g.s0', null, el('path.line', {d})));
}
