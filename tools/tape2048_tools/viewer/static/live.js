// Recorders and trainings as they are now, by server-sent events.

import {askJson, refusalNode} from './api.js';
import {bytes, count, counted, el, facts, fill, message, moment, odds, percent, seconds, short,
  tileName} from './dom.js';
import {figure} from './charts.js';

const HISTORY = 600;

export function livePage(main) {
  const body = el('div', {'aria-live': 'off'});
  const state = el('p.lead', {role: 'status'}, 'connecting…');
  fill(main, el('h1', null, 'Live'), state, body);
  const rates = new Map();
  const curves = new Map();
  const cards = new Map();
  const critics = new Map();
  let source = new EventSource('/api/live');
  source.onmessage = event => {
    const document = JSON.parse(event.data);
    if (document.error) {
      state.textContent = document.error;
      return;
    }
    const counts = [counted(document.recorders.length, 'recorder'), counted(document.trainings.length, 'training')];
    state.textContent = `${counts.join(', ')} · ${new Date().toISOString().slice(11, 19)} UTC`;
    for (const one of document.recorders) if (one.status) remember(rates, one);
    const recorders = [...document.recorders].sort((a, b) => Number(b.running || 0) - Number(a.running || 0));
    const shown = [...recorders.map(one => ['recorder', one]),
        ...document.trainings.map(one => ['training', one])];
    if (!shown.length) {
      fill(body, message('No recorder and no training has written anything here.',
          'Start one with `tape2048 record`; this page shows it within seconds.'));
      cards.clear();
      return;
    }
    const nodes = shown.map(([kind, one]) => {
      if (!cards.has(one.id)) cards.set(one.id, el('section'));
      const card = cards.get(one.id);
      if (kind === 'recorder') fill(card, recorderCard(one), criticLine(critics, one), one.running
        ? rateFigure(rates.get(one.id), card) : null);
      else trainingCard(card, one, curves);
      return card;
    });
    const changed = nodes.length !== body.children.length || nodes.some((node, i) => body.children[i] !== node);
    if (changed) fill(body, nodes);
  };
  source.onerror = () => { state.textContent = 'The viewer does not answer; trying again.'; };
  return () => { source.close(); source = null; };
}

function remember(rates, one) {
  const past = rates.get(one.id) || [];
  past.push([Date.now() / 1000, one.running ? one.status.steps_per_s : 0]);
  if (past.length > HISTORY) past.shift();
  rates.set(one.id, past);
}

/** The rate as a line that grows: plain SVG, since it is drawn anew each second. */
function rateFigure(past, card) {
  if (!past || past.length < 3) return null;
  const [width, height] = [Math.max(200, card.clientWidth - 40), 60];
  const top = Math.max(...past.map(one => one[1])) || 1;
  const x = i => (i / (past.length - 1) * width).toFixed(1);
  const y = value => (height - 4 - value / top * (height - 10)).toFixed(1);
  const d = past.map(([, value], i) => `${i ? 'L' : 'M'}${x(i)} ${y(value)}`).join('');
  const label = `Moves a second over the last ${past.length} s, at most ${count(top)}`;
  return [el('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label},
    el('g.s0', null, el('path.line', {d}))), el('small', {'aria-hidden': true}, label)];
}

/** What the critic says of the games that a recorder published last; asked again for each new session. */
function criticLine(critics, one) {
  if (!one.status) return null;
  if (!critics.has(one.id)) critics.set(one.id, {node: el('div.latest'), sessions: -1});
  const known = critics.get(one.id);
  if (known.sessions !== one.status.counts.sessions) {
    known.sessions = one.status.counts.sessions;
    askJson('latest', {id: one.id}).then(found => {
      if (found.waiting) known.sessions = -1;
      if (found.session) fill(known.node, latestGames(found));
    }, error => fill(known.node, el('p.soft', null, `No critic: ${error.message}`)));
  }
  return known.node;
}

function latestGames(found) {
  const reached = found.thresholds.map((tile, i) => `${found.reached[i]} reached ${tileName(tile)}`).join(', ');
  return [el('p', null, `The critic, halfway through the last ${counted(found.games, 'game')} of `,
    el('a', {href: `#games?session=${found.session}`}, found.name),
    `: ${odds(found.thresholds, found.odds[0])}. Of them ${reached}.`),
  found.remark || found.unread ? el('p.soft', null, found.remark || found.unread) : null];
}

function recorderCard(one) {
  const head = el('h2', null, `Recorder ${one.instance} of ${one.root} `,
      el(one.running ? 'span.state.on' : 'span.state', null, one.state || 'unreadable'));
  if (one.error) return [head, el('p.soft', null, one.error)];
  const status = one.status;
  const reach = Object.entries(status.reach).map(([tile, share]) => `${tile}: ${percent(share)}`).join(' · ');
  return [head, el('p.soft', null, `${one.text} · ${one.player} on ${one.host} since ${moment(one.started_at)}`),
      facts([
        ['moves a second', one.running ? count(status.steps_per_s) : '–'],
        ['moves', count(status.steps)],
        ['games', count(status.games)],
        ['mean score', count(status.mean_score)],
        ['reach', reach || '–'],
        one.running ? ['workers', `${status.workers_ready} of ${status.workers}`] : null,
        ['published', count(status.counts.sessions)],
        ['disk free', status.free_bytes === null ? '–' : bytes(status.free_bytes)
            + (one.running && status.disk_full_s ? `, full in ${seconds(status.disk_full_s)}` : '')],
      ]),
  !one.running ? null : el('p', null, el('label', null,
      `open session: ${count(status.session_rows)} of ${count(one.rotate_steps)} rows`,
    el('progress', {max: Math.max(1, one.rotate_steps),
        value: Math.min(status.session_rows, one.rotate_steps)})))];
}

function trainingCard(card, one, curves) {
  const age = one.written_at ? Date.now() / 1000 - one.written_at : null;
  const head = [el('h2', null, `${one.name} `,
      el(age !== null && age < 120 ? 'span.state.on' : 'span.state', null, one.error
      || `written ${seconds(age)} ago`)),
    facts(Object.entries(one.last || {}).map(([name, value]) => [name, typeof value === 'number' ? short(value)
        : value]))];
  const known = curves.get(one.id);
  if (known && known.at === one.written_at) {
    fill(card.firstElementChild || card, head);
    return;
  }
  curves.set(one.id, {at: one.written_at});
  const plots = el('div.grid-2');
  fill(card, el('div', null, head), plots);
  askJson('training', {id: one.id}).then(document => fill(plots, trainingFigures(document)),
      error => fill(plots, refusalNode(error)));
}

/** The curves of a training, each in a figure. */
export function trainingFigures(document) {
  return Object.entries(document.curves).map(([name, points]) => figure(name,
      {height: 150, series: [{name, points}], x: {label: 'step'}, y: {}}));
}
