// The current state of recorders and trainings, requested once a second.

import {askJson, refusalNode} from './api.js';
import {bytes, count, counted, el, facts, fill, message, moment, odds, percent, seconds, setText, short,
  tileName} from './dom.js';
import {figure} from './charts.js';
import {Tiles} from './tiles.js';

const INTERVAL_MS = 1000;
const MOVE_MS = 120;
const RUNS_MAX = 6;

export function livePage(main) {
  const body = el('div', {'aria-live': 'off'});
  const trained = el('div');
  const state = el('p.lead', {role: 'status'}, 'connecting…');
  fill(main, el('h1', null, 'Live'), state, body, trained);
  const cards = new Map();
  let left = false;
  const states = new Map();
  let [drawn, drawing] = ['', false];
  const show = document => {
    const counts = ['recorder', 'training'].map(name => counted(document[`${name}s`].filter(one => one.running).length,
      `running ${name}`));
    state.textContent = `${counts.join(', ')} · ${new Date().toISOString().slice(11, 19)} UTC`;
    const recorders = [...document.recorders].sort((a, b) => Number(b.running || 0) - Number(a.running || 0));
    for (const one of recorders) {
      if (!cards.has(one.id)) cards.set(one.id, new RecorderCard());
      cards.get(one.id).show(one);
    }
    const nodes = recorders.map(one => cards.get(one.id).node);
    if (!nodes.length && !document.trainings.length) {
      nodes.push(message('There are no recorders and no trainings here.',
          'Start one with `tape2048 record`; this page shows it within seconds.'));
    }
    if (nodes.length !== body.children.length || nodes.some((node, i) => body.children[i] !== node)) fill(body, nodes);
    const written = JSON.stringify(document.trainings.map(one => [one.id, one.written_at, one.running]));
    for (const one of document.trainings) {
      if (!states.has(one.id)) states.set(one.id, el('span'));
      showState(states.get(one.id), one);
    }
    if (written === drawn || drawing) return;
    [drawn, drawing] = [written, true];
    drawTrainings(trained, document.trainings, states).finally(() => { drawing = false; });
  };
  const update = async () => {
    await askJson('live').then(show, error => { state.textContent = `${error.message} Trying again.`; });
    if (!left && body.isConnected) setTimeout(update, INTERVAL_MS);
  };
  update();
  return () => {
    left = true;
    for (const one of cards.values()) clearTimeout(one.timer);
  };
}

/** A recorder: its figures, its speed over time, and the game that it committed last, move by move. */
class RecorderCard {
  constructor() {
    this.head = el('div');
    this.critic = el('div.latest');
    this.sessions = -1;
    this.tiles = new Tiles();
    this.told = el('p.soft', null, '\u00a0');
    this.game = el('div.live-game', {hidden: true}, this.tiles.node, this.told);
    this.rate = figure('Moves per second', this.plot([], 0));
    this.rate.hidden = true;
    this.node = el('section.recorder', null, this.head, this.game, this.rate, this.critic);
    this.timer = 0;
  }

  /** The speed between the points of a recorder's history, [seconds since the start, moves]. */
  plot(history, now) {
    const points = history.slice(1).map(([at, moves], i) => [at - now, (moves - history[i][1]) / (at - history[i][0])]);
    return {height: 150, series: [{name: 'moves per second', points}],
      x: {label: 'time', high: 0, format: at => at > -0.5 ? 'now' : `${seconds(-at)} ago`},
      y: {label: 'moves per second', low: 0}};
  }

  show(one) {
    fill(this.head, recorderHead(one));
    this.running = one.running;
    if (!one.status) return;
    const {history, elapsed_s: now} = one.status;
    this.rate.hidden = !one.running || history.length < 3;
    if (!this.rate.hidden) this.rate.redraw(this.plot(history, now));
    if (one.running && !this.timer) this.follow(one.id);
    if (this.sessions !== one.status.counts.sessions) this.askCritic(one);
  }

  /** Show the end of the newest game, then the end of the next. A recorder that stopped shows its last game. */
  async follow(id) {
    this.timer = setTimeout(() => {}, 0);
    const game = await askJson('newest', {id}).catch(() => ({}));
    if (!this.node.isConnected) return this.stop();
    const again = delay => { this.timer = this.running ? setTimeout(() => this.follow(id), delay) : 0; };
    if (!game.exps) return again(3 * INTERVAL_MS);
    this.game.hidden = false;
    let at = 0;
    const step = () => {
      if (!this.node.isConnected) return this.stop();
      const last = at === game.exps.length - 1;
      this.tiles.show(game.exps[at], 0, at ? game.moves[at - 1] : -1);
      setText(this.told, `Game ${game.run}, just recorded: move ${count(game.numbers[at])} of ${count(game.steps)}`
        + (last ? ` · ${count(game.score)} points` : ''));
      if (last) this.tiles.speak();
      at += 1;
      if (last) again(2 * INTERVAL_MS);
      else this.timer = setTimeout(step, MOVE_MS);
      return undefined;
    };
    return step();
  }

  stop() { this.timer = 0; }

  /** Ask for the critic's opinion of the games that a recorder published last, again for each new session. */
  askCritic(one) {
    this.sessions = one.status.counts.sessions;
    askJson('latest', {id: one.id}).then(found => {
      if (found.waiting) this.sessions = -1;
      if (found.session) fill(this.critic, latestGames(found));
    }, error => fill(this.critic, el('p.soft', null, `No critic: ${error.message}`)));
  }
}

function latestGames(found) {
  const reached = found.thresholds.map((tile, i) => `${found.reached[i]} reached ${tileName(tile)}`).join(', ');
  return [el('p', null, `The critic, halfway through the last ${counted(found.games, 'game')} of `,
    el('a', {href: `#games?session=${found.session}`}, found.name),
    `: ${odds(found.thresholds, found.odds[0])}. Of these games, ${reached}.`),
  found.remark || found.unread ? el('p.soft', null, found.remark || found.unread) : null];
}

function recorderHead(one) {
  const head = el('h2', null, `Recorder ${one.instance || ''} of ${one.root} `,
      el(one.running ? 'span.state.on' : 'span.state', null, one.text || 'unreadable'));
  if (one.error) return [head, el('p.soft', null, one.error)];
  const status = one.status;
  const reach = Object.entries(one.reach).map(([tile, {share, low, high}]) => el('span', null,
    `${tileName(tile)} ${percent(share)} `, el('span.soft', null, `(${percent(low)} to ${percent(high)})`)));
  const error = one.mean_error ? ` ± ${count(one.mean_error)}` : '';
  const full = status.free_bytes === null ? '–' : bytes(status.free_bytes)
    + (one.running && status.disk_full_s ? `, full in ${seconds(status.disk_full_s)}` : '');
  return [head, el('p', null, el('span', {title: one.full}, one.player), el('span.soft', null, ` on ${one.host} since ${moment(one.started_at)}`)),
    facts([
      ['moves per second', one.running ? count(status.steps_per_s) : '–'],
      ['moves', count(status.steps)], ['games', count(status.games)], ['mean score', `${count(status.mean_score)}${error}`],
      ['reach, with intervals of 95%', reach.length ? el('span.reach', null, reach) : '–'], one.running ? ['workers', `${status.workers_ready} of ${status.workers}`] : null,
      ['published', count(status.counts.sessions)], ['disk free', full],
    ]),
    !one.running ? null : el('p', null, el('label', null,
      `open session: ${count(status.session_rows)} of ${count(one.rotate_steps)} rows`,
      el('progress', {max: Math.max(1, one.rotate_steps), value: Math.min(status.session_rows, one.rotate_steps)})))];
}

async function drawTrainings(node, trainings, states) {
  const groups = new Map();
  for (const one of trainings) groups.set(one.parent, [...(groups.get(one.parent) || []), one]);
  const several = [...groups].map(([parent, all]) => [parent, all.length,
    all.sort((a, b) => (b.written_at || 0) - (a.written_at || 0)).slice(0, RUNS_MAX)]);
  const group = ([parent, total, runs], found) => [
    el('section', null, el('h2', null, `Trainings in ${parent}`), runs.map((one, i) => el('div.run', null,
      el('h3', null, `${one.name} `, states.get(one.id)),
      el('div.headline', null, Array.isArray(found) ? trainingHead(one, found[i]) : null))),
    total > runs.length ? el('p.soft', null, `and ${counted(total - runs.length, 'older training')}`) : null),
    found && el('div', null, Array.isArray(found) ? trainingFigures(found) : refusalNode(found))];
  const show = found => {
    // Of trainings that have ended, the page shows only the names until the user opens them.
    const parts = several.map((one, at) => [one[2].some(run => run.running || run.error), group(one, found[at])]);
    const ended = parts.filter(([runs]) => !runs).map(pair => pair[1]);
    const open = node.lastChild && node.lastChild.open;
    fill(node, parts.filter(([runs]) => runs).map(pair => pair[1]), ended.length ? el('details', {open},
      el('summary', null, `Trainings that have ended: ${several.filter(one => !one[2].some(run => run.running
        || run.error)).map(one => one[0]).join(', ')}`), ended) : null);
  };
  if (!node.firstChild) show([]);
  show(await Promise.all(several.map(([, , runs]) =>
    Promise.all(runs.map(one => askJson('training', {id: one.id}))).catch(error => error))));
}

function showState(node, one) {
  const age = Date.now() / 1000 - one.written_at;
  const state = one.running ? 'written' : one.of && one.done >= one.of ? 'finished' : 'stopped';
  node.className = one.running ? 'state on' : 'state';
  setText(node, one.error || `${state} ${seconds(age)} ago`);
}

function trainingHead(one, {x, figures}) {
  const main = figures[0];
  const [name, series] = main ? Object.entries(main.series)[0] : [];
  const at = point => `at ${x} ${count(point[0])}`;
  return [main && [`${main.title} ${name}`, short(series.last[1]), `best ${short(series.best[1])} ${at(series.best)}`],
    one.of ? [one.unit, count(one.done), `of ${count(one.of)}`] : null,
    one.running && one.of && one.left_s ? ['time left', seconds(one.left_s), 'at the current speed'] : null].filter(Boolean).map(
    ([label, value, note]) => el('dl', null, el('dt', null, label), el('dd', null, el('b', null, value),
      el('small', null, note))));
}

/** The curves of trainings, all in each figure. The first figure is large, and marks the best values. */
export function trainingFigures(documents) {
  const titles = [...new Set(documents.flatMap(one => one.figures.map(found => found.title)))];
  const plots = titles.map((title, number) => {
    const series = documents.flatMap((one, run) => one.figures.filter(found => found.title === title).flatMap(found =>
      Object.entries(found.series).map(([name, {points, best}], i) => ({points, best, colour: documents.length > 1 ? run : i,
        name: [documents.length > 1 ? one.name : '', name].filter(Boolean).join(' ') || title}))));
    const marks = number ? [] : series.map(one => ({mark: true, kind: 'dots', colour: one.colour, points: [one.best]}));
    if (!series.some(one => one.points.length > 1)) return null; // a point is no curve
    return figure(title, {height: number ? 150 : 260, series: [...series, ...marks],
      x: {label: documents[0].x, format: short}, y: {low: title.startsWith('rows') || title.startsWith('moves') ? 0
        : undefined}},
    number ? null : 'A dot marks the best value.');
  });
  return plots.length ? [plots[0], el('div.grid-2', null, plots.slice(1).filter(Boolean))] : null;
}
