// Curves over a game, on canvas: drawn once for each width; only a line moves while one scrubs.

import {colour, count, el, percent, setText, short, tileName, valued} from './dom.js';
import {ticks} from './charts.js';

const PANEL = 84;
const GAP = 14;
const EDGE = 46;

/** The panels of a game: what each shows, and its words for a position. */
export function panelsOf(game) {
  const panels = [];
  const last = game.count;
  if (game.state) {
    const unit = game.judge.unit;
    const range = extent(game.state);
    panels.push({title: unit === 'points' ? 'value to come' : `P(${game.judge.tile})`,
        series: [[game.state, 'accent']], low: Math.min(0, range[0]),
      high: unit === 'points' ? range[1] : 1, words: at => [valued(game.state[at], unit)]});
    const bound = Math.max(quantile(game.loss, 0.9995), quantile(game.luck.map(Math.abs), 0.9995)) || 1;
    panels.push({title: 'luck, loss', bars: [[game.luck, 'soft', 1], [game.loss, 'accent', -1]], low: -bound,
        high: bound,
      keys: ['.key.s2', '.key.s0'],
      words: at => at < last ? [`luck ${valued(game.luck[at], unit)}`, `loss ${valued(game.loss[at], unit)}`]
          : ['luck –', 'loss –']});
  }
  if (game.critic) {
    const width = game.critic.length / game.thresholds.length;
    const series = game.thresholds.map((_, i) => [game.critic.subarray(i * width, (i + 1) * width),
        ['accent', 'ink', 'soft'][i % 3]]);
    panels.push({title: 'critic', series, low: 0, high: 1, format: percent,
        keys: game.thresholds.map((_, i) => `.key.s${i % 3}`),
      words: at => game.thresholds.map((tile,
          i) => `${tileName(tile)} ${percent(series[i][0][Math.round(at * (width - 1) / Math.max(1, last))])}`)});
  }
  panels.push({title: 'empty cells', series: [[game.empty, 'accent']], low: 0,
      high: Math.max(8, extent(game.empty)[1]), words: at => [String(game.empty[at])]});
  panels.push({title: 'highest tile', series: [[game.highest, 'accent']], low: 0, high: 16, ticks: [4, 8, 12, 15],
      format: exp => tileName(2 ** exp),
    words: at => [String(2 ** game.highest[at])]});
  return panels;
}

export class Curves {
  constructor(game, onseek) {
    this.game = game;
    this.panels = panelsOf(game);
    this.canvas = el('canvas', {role: 'img',
        'aria-label': `Curves over ${count(game.count)} moves: ${this.panels.map(one => one.title).join(', ')}`});
    this.line = el('div.playhead');
    this.words = this.panels.map(panel => (panel.keys || ['']).map(key => el(`span${key}`)));
    this.heads = this.panels.map((panel, i) => el('p.panel-head', null, el('span', null, panel.title),
        el('output', null, this.words[i])));
    this.area = el('div.curve-area', null, this.canvas, this.heads, this.line);
    this.node = el('div.curves', null, this.area);
    this.width = 0;
    this.at = 0;
    this.observer = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    });
    this.observer.observe(this.area);
    const seek = event => {
      const x = event.clientX - this.canvas.getBoundingClientRect().left;
      onseek(Math.round(Math.min(1, Math.max(0, (x - EDGE) / (this.width - EDGE))) * game.count));
    };
    this.area.addEventListener('pointerdown', event => {
      this.area.setPointerCapture(event.pointerId);
      seek(event);
    });
    this.area.addEventListener('pointermove', event => { if (event.buttons) seek(event); });
  }

  /** Move the line to a position. */
  show(at) {
    this.at = at;
    const x = EDGE + at / Math.max(1, this.game.count) * (this.width - EDGE);
    this.line.style.transform = `translateX(${x}px)`;
    this.panels.forEach((panel, i) => {
      panel.words(at).forEach((text, k) => setText(this.words[i][k], text));
    });
  }

  draw() {
    const scale = devicePixelRatio || 1;
    const height = this.panels.length * (PANEL + GAP + 20);
    this.canvas.width = this.width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext('2d');
    context.scale(scale, scale);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.panels.forEach((panel, i) => {
      const top = i * (PANEL + GAP + 20) + 20;
      this.heads[i].style.top = `${top - 20}px`;
      this.drawPanel(context, panel, top);
    });
    this.show(this.at);
  }

  drawPanel(context, panel, top) {
    const {low, high} = panel;
    const py = value => top + PANEL - (Math.min(high, Math.max(low, value)) - low) / (high - low) * PANEL;
    const marks = panel.ticks || ticks(low, high, 3);
    context.textAlign = 'right';
    for (const value of marks) {
      context.fillStyle = colour('line');
      context.fillRect(EDGE, Math.round(py(value)), this.width - EDGE, 1);
      context.fillStyle = colour('soft');
      context.fillText((panel.format || short)(value), EDGE - 6, py(value) + 4);
    }
    const pixels = Math.max(1, this.width - EDGE);
    for (const [values, name] of panel.series || []) {
      context.strokeStyle = colour(name);
      context.lineWidth = 1.4;
      context.lineJoin = 'round';
      context.beginPath();
      spans(values, pixels, (x, least, most) => {
        context.lineTo(EDGE + x, py(least));
        if (most !== least) context.lineTo(EDGE + x, py(most));
      });
      context.stroke();
    }
    for (const [values, name, sign] of panel.bars || []) {
      context.fillStyle = colour(name);
      const wide = Math.max(1, pixels / Math.max(1, values.length) - 0.5);
      spans(values, pixels, (x, least, most) => {
        const ends = sign > 0 ? [least, most] : [-most, -least];
        const [from, to] = [py(Math.max(0, ends[1])), py(Math.min(0, ends[0]))];
        context.fillRect(EDGE + x, from, wide, Math.max(0, to - from));
      });
    }
  }
}

/** Call with the least and the greatest value of each pixel. */
function spans(values, pixels, call) {
  const total = values.length;
  if (total <= pixels) {
    for (let i = 0; i < total; i++) if (!Number.isNaN(values[i])) call(i / Math.max(1, total - 1) * pixels, values[i],
        values[i]);
    return;
  }
  for (let x = 0; x < pixels; x++) {
    let [least, most] = [Infinity, -Infinity];
    const end = Math.floor((x + 1) * total / pixels);
    for (let i = Math.floor(x * total / pixels); i < end; i++) {
      if (values[i] < least) least = values[i];
      if (values[i] > most) most = values[i];
    }
    if (most >= least) call(x, least, most);
  }
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

function quantile(values, share) {
  const known = values.filter(value => !Number.isNaN(value)).sort(); // typed arrays: by number
  return known.length ? known[Math.floor(share * (known.length - 1))] : 0;
}

