// Curves over a game, on canvas: drawn once for each width; only a line moves while one scrubs.

import {colour, count, el, fill, percent, setText, short, tileName, valued} from './dom.js';
import {ticks} from './charts.js';

const EDGE = 46;
const HEAD = 18;
const AXIS = 18;
const TALL = 62;
const LOW = 40;
const TILE_NAMED = 11; // exponent of the first tile whose appearance is marked

/** The panels of a game: their series, and their words for a position. */
function panelsOf(game) {
  const panels = [];
  const last = game.count;
  if (game.state) {
    const unit = game.judge.unit;
    const range = extent(game.state);
    panels.push({keys: [[unit === 'points' ? 'points to come' : `P(${game.judge.tile})`, 'c0']], height: TALL,
      series: [[game.state, 'c0']], low: Math.min(0, range[0]), high: unit === 'points' ? range[1] : 1,
      words: at => [valued(game.state[at], unit)]});
    const bound = Math.max(quantile(game.loss, 0.9995), quantile(game.luck.map(Math.abs), 0.9995)) || 1;
    panels.push({keys: [['luck', 'c2'], ['loss', 'c1']], bars: [[game.luck, 'c2', 1], [game.loss, 'c1', -1]],
      low: -bound, high: bound,
      words: at => [game.luck, game.loss].map(one => at < last ? valued(one[at], unit) : '–')});
  }
  if (game.critic) {
    const width = game.critic.length / game.thresholds.length;
    const series = game.thresholds.map((_, i) => [game.critic.subarray(i * width, (i + 1) * width), `c${i % 3}`]);
    panels.push({keys: game.thresholds.map((tile, i) => [`P(${tileName(tile)})`, `c${i % 3}`]), series, low: 0, high: 1,
      format: percent,
      words: at => series.map(one => percent(one[0][Math.round(at * (width - 1) / Math.max(1, last))]))});
  }
  if (!game.state) {
    panels.push({keys: [['empty cells', 'c0']], series: [[game.empty, 'c0']], low: 0,
      high: Math.max(8, extent(game.empty)[1]), words: at => [String(game.empty[at])]});
  }
  return panels;
}

/** Curves of `game`, with `dots` [position, grade]; `onseek` gets the position that is clicked, `onwheel` its step. */
export class Curves {
  constructor(onseek, onwheel) {
    this.canvas = el('canvas', {role: 'img'});
    this.line = el('div.playhead');
    this.tip = el('div.tip', {hidden: true});
    this.heads = el('div');
    this.area = el('div.curve-area', null, this.canvas, this.heads, this.line, this.tip);
    this.node = el('div.curves', null, this.area);
    this.width = 0;
    this.at = 0;
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.area);
    const positionOf = event => {
      const x = event.clientX - this.canvas.getBoundingClientRect().left;
      return Math.round(Math.min(1, Math.max(0, (x - EDGE) / (this.width - EDGE))) * this.game.count);
    };
    this.area.addEventListener('pointerdown', event => {
      this.area.setPointerCapture(event.pointerId);
      onseek(this.dotNear(event) ?? positionOf(event));
    });
    this.area.addEventListener('pointermove', event => {
      if (event.buttons) onseek(positionOf(event));
      this.explain(this.dotNear(event) ?? positionOf(event));
    });
    this.area.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.area.addEventListener('wheel', onwheel, {passive: false});
  }

  /** Take a game, or another judgement of it. */
  take(game, dots) {
    [this.game, this.dots, this.panels] = [game, dots, panelsOf(game)];
    const names = this.panels.flatMap(one => one.keys.map(key => key[0]));
    this.canvas.setAttribute('aria-label', `Curves over ${count(game.count)} moves: ${names.join(', ')}`);
    this.words = this.panels.map(panel => panel.keys.map(() => el('output')));
    fill(this.heads, this.panels.map((panel, i) => el('p.panel-head', null, panel.keys.map(([name, key], k) =>
      el(`span.key.${key}`, null, `${name} `, this.words[i][k])))));
    this.draw();
  }

  x(at) {
    return EDGE + at / Math.max(1, this.game.count) * (this.width - EDGE);
  }

  /** Move the line to a position. */
  show(at) {
    this.at = at;
    this.line.style.transform = `translateX(${this.x(at)}px)`;
    this.panels.forEach((panel, i) => panel.words(at).forEach((text, k) => setText(this.words[i][k], text)));
  }

  /** The position of the dot under the pointer; undefined without one. */
  dotNear(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const near = this.dots.filter(([at]) => Math.hypot(this.x(at) - x, this.dotY(at) - y) < 7);
    return near.length ? near[0][0] : undefined;
  }

  dotY(at) {
    const {low, high, height} = this.panels[0];
    return HEAD + height - (this.game.state[at] - low) / (high - low) * height;
  }

  /** Show the numbers of a position in a tooltip. */
  explain(at) {
    const dot = this.dots.find(one => one[0] === at);
    const number = this.game.numbers ? this.game.numbers[at] : at;
    fill(this.tip, el('b', null, `move ${count(number)}`), dot ? el(`span.grade.${dot[1]}`, null, dot[1]) : null,
      this.panels.flatMap(panel => panel.words(at).map((text, k) => el('span', null, `${panel.keys[k][0]} ${text}`))));
    this.tip.hidden = false;
    const x = this.x(at);
    this.tip.style.transform = `translateX(${x > this.width / 2 ? `calc(${x - 10}px - 100%)` : `${x + 10}px`})`;
  }

  draw() {
    if (!this.game || !this.width) return;
    const scale = devicePixelRatio || 1;
    const height = this.panels.reduce((sum, one) => sum + HEAD + (one.height || LOW), AXIS);
    this.canvas.width = this.width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext('2d');
    context.scale(scale, scale);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    let top = 0;
    this.panels.forEach((panel, i) => {
      this.heads.children[i].style.top = `${top}px`;
      top += HEAD;
      this.drawPanel(context, panel, top, panel.height || LOW);
      top += panel.height || LOW;
    });
    this.drawAxis(context, top);
    for (const grade of ['inaccuracy', 'mistake', 'blunder']) { // the worst ones on top
      context.fillStyle = colour(grade);
      context.strokeStyle = colour('card');
      for (const [at, its] of this.dots) {
        if (its !== grade) continue;
        context.beginPath();
        context.arc(this.x(at), this.dotY(at), {inaccuracy: 3, mistake: 4, blunder: 5}[grade], 0, 7);
        context.fill();
        context.stroke();
      }
    }
    this.show(this.at);
  }

  drawPanel(context, panel, top, height) {
    const {low, high} = panel;
    const py = value => top + height - (Math.min(high, Math.max(low, value)) - low) / (high - low) * height;
    context.textAlign = 'right';
    for (const value of ticks(low, high, 3)) {
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

  /** The axis of moves, and where the first large tiles appear. */
  drawAxis(context, top) {
    const {game} = this;
    context.fillStyle = colour('soft');
    let free = 0;
    const write = (text, x, y) => {
      const half = context.measureText(text).width / 2;
      const at = Math.min(this.width - half, Math.max(EDGE + half, x));
      if (at - half < free) return;
      context.fillText(text, at, y);
      free = at + half + 8;
    };
    context.textAlign = 'center';
    const numberOf = at => game.numbers ? game.numbers[Math.round(at)] : at;
    for (const at of ticks(0, game.count, Math.floor(this.width / 130)).filter(Number.isInteger)) {
      write(`${at ? '' : 'move '}${count(numberOf(at))}`, this.x(at), top + 13);
    }
    free = EDGE + 190;
    for (let exp = TILE_NAMED; exp < 16; exp++) {
      const at = game.highest.indexOf(exp);
      if (at <= 0) continue;
      context.globalAlpha = 0.4;
      context.fillRect(Math.round(this.x(at)), HEAD, 1, top - HEAD);
      context.globalAlpha = 1;
      write(tileName(2 ** exp), this.x(at), HEAD - 4);
    }
  }
}

/** Call with the least and the greatest value of each pixel. */
function spans(values, pixels, call) {
  const total = values.length;
  if (total <= pixels) {
    values.forEach((one, i) => { if (!Number.isNaN(one)) call(i / Math.max(1, total - 1) * pixels, one, one); });
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
  const known = values.filter(value => !Number.isNaN(value));
  return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [0, 1];
}

function quantile(values, share) {
  const known = values.filter(value => !Number.isNaN(value)).sort(); // typed arrays: by number
  return known.length ? known[Math.floor(share * (known.length - 1))] : 0;
}
