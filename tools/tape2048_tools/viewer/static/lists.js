// The lists of sessions and of games: sorted, filtered, page by page.

import {askJson, refusalNode} from './api.js';
import {bytes, count, el, fill, message, odds, percent, table, tileName} from './dom.js';
import {selectionForm, selectionOf} from './overview.js';

const WAITING_LIST_MS = 1000;

/** A heading that sorts by a column. */
function sorter(label, name, given, normal, go) {
  const sorted = (given.sort || normal) === name;
  const descending = (given.desc || '1') === '1';
  const button = el('button.sort', {type: 'button', 'data-sorted': sorted ? (descending ? 'descending' : 'ascending')
      : null,
    onclick: () => go({sort: name, desc: sorted && descending ? '0' : '1', page: ''})}, label, sorted
        ? (descending ? ' ↓' : ' ↑') : '');
  return button;
}

function pager(total, given, rows, go) {
  const page = Number(given.page || 0);
  const last = Math.max(0, Math.ceil(total / rows) - 1);
  const turn = (label, to, off) => el('button',
      {type: 'button', disabled: off, onclick: () => go({page: String(to)})}, label);
  return el('nav.pager', {'aria-label': 'Pages of the list'}, turn('← Back', page - 1, page <= 0), el('span', null,
    `page ${count(page + 1)} of ${count(last + 1)} · ${count(total)} in all`),
        turn('Next →', page + 1, page >= last));
}

/**
 * Asks what the critic says of sessions, or of games (session/run), after the list is shown, since it takes a row of
 * each game; `show(tiles, odds, at)` gets it for each of them. Returns a line for its remarks.
 */
function askCritic(keys, waiting, show) {
  const note = el('p.soft.critic-note', {role: 'status'});
  if (keys.length && !waiting) {
    askJson('opinions', {of: keys.join(',')}).then(found => {
      keys.forEach((_, i) => show(found.thresholds, found.odds[i], i));
      fill(note, [found.remark, found.unread].filter(Boolean).join(' '));
    }, error => {
      keys.forEach((_, i) => show([], null, i));
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
  fill(body, document.waiting ? message(`${count(document.waiting)} sessions are still to be read.`) : null,
      draw(document));
  if (document.waiting) setTimeout(() => body.isConnected && listPage(main, body, name, given, draw),
      WAITING_LIST_MS);
}

export function sessionsPage(main, given, shell, about) {
  const body = el('div');
  const again = change => shell.go('sessions', {...given, ...change});
  const query = el('input', {name: 'q', value: given.q || '', autocomplete: 'off',
      placeholder: 'part of a name or a player'});
  fill(main, el('h1', null, 'Sessions'), el('section', null, el('form.form', {role: 'search', onsubmit: event => {
    event.preventDefault();
    again({q: query.value, page: ''});
  }}, el('label.long', null, 'Named', query), el('button', {type: 'submit'}, 'Show')), body));
  const sort = (label, name) => sorter(label, name, given, 'name', again);
  return listPage(main, body, 'sessions', {desc: '1', ...given}, document => {
    const tiles = about.reach_tiles.slice(2);
    const cells = document.rows.map(() => tiles.map(() => el('small.odds', null, '…')));
    const others = document.rows.map(() => el('small.odds'));
    const note = askCritic(document.rows.map(one => one.id), document.waiting, (known, odds, at) => {
      cells[at].forEach((cell, i) => fill(cell, odds && known.includes(tiles[i])
        ? percent(odds[known.indexOf(tiles[i])]) : '–'));
      const rest = odds ? known.filter(tile => !tiles.includes(tile)) : [];
      fill(others[at], rest.map(tile => `${tileName(tile)} ${percent(odds[known.indexOf(tile)])}`).join(' · '));
    });
    return [
      document.total ? table('Sessions; below the share of games that reached a tile, what the critic says halfway',
        [sort('session', 'name'), sort('player', 'player'), number(sort('games', 'games')),
          number(sort('rows', 'rows')), number(sort('mean score', 'mean_score')), number(sort('best', 'best_score')),
          ...tiles.map(tile => `>${tileName(tile)}`), number(sort('size', 'bytes'))],
        document.rows.map((one, row) => [el('a', {href: `#games?session=${one.id}`}, one.name),
          el('span.text', null, one.player, others[row]), right(count(one.games)), right(count(one.rows)),
          right(count(one.mean_score)), right(count(one.best_score)),
          ...tiles.map((tile, i) => el('span', null, percent(one.reach[tile]), cells[row][i])),
          right(bytes(one.bytes))])) : message('No session has such a name.'),
      note,
      pager(document.total, given, about.page_rows, again),
      document.broken.length ? el('details', null,
        el('summary', null, `${count(document.broken.length)} sessions cannot be read`),
        el('ul', null, document.broken.slice(0, 100).map(one => el('li', null, `${one.name}: ${one.message}`))))
        : null];
  });
}

function number(node) {
  return el('span.right', null, node);
}

function right(text) {
  return el('span.right', null, text);
}

export function gamesPage(main, given, shell, about) {
  const body = el('div');
  const again = change => shell.go('games', {...given, ...change});
  const cleared = Object.fromEntries(Object.keys(selectionOf(given)).map(name => [name, '']));
  // A game is chosen from the list to be shown beside another one.
  const choosing = /^[0-9a-f]{10}\/\d+$/.test(given.beside || '') ? given.beside : null;
  const linkOf = one => choosing ? `#${choosing}?beside=${one.session}/${one.run}` : `#${one.session}/${one.run}/0`;
  fill(main, el('h1', null, choosing ? 'Choose a game' : 'Games'), choosing ? el('p.lead', null,
    `to be shown beside game ${choosing.split('/')[1]}, or `, el('a', {href: `#${choosing}`}, 'go back to it')) : null,
  el('section', null, selectionForm(given, '', 'Condition (SQL)', change => again({...cleared, ...change, page: ''})),
    body));
  const sort = (label, name) => sorter(label, name, given, 'max_score', again);
  return listPage(main, body, 'games', {desc: '1', ...given}, document => {
    const critic = document.rows.map(() => el('span.odds', null, '…'));
    const note = askCritic(document.rows.map(one => `${one.session}/${one.run}`), document.waiting,
      (tiles, found, at) => fill(critic[at], odds(tiles, found)));
    return [
      document.total ? table('Games', [sort('game', 'id'), number(sort('score', 'max_score')),
        number(sort('highest tile', 'highest_tile')), number(sort('moves', 'steps')), 'critic, halfway',
        sort('session', 'session'), 'player'],
      document.rows.map((one, i) => [el('a', {href: linkOf(one)}, `game ${one.run}`), right(count(one.score)),
        right(String(one.tile)), right(count(one.steps)), critic[i], el('span.text', null, one.name),
        el('span.text', null, one.player)])) : message('No game meets the condition.'),
      note,
      pager(document.total, given, about.page_rows, again)];
  });
}
