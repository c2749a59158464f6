// Curves over a game, on canvas: drawn once for each width and zoom. Moving through the game only moves a line.

import {colour, count, counted, el, fill, percent, setText, short, tileName, valued} from './dom.js';
import {ticks} from './charts.js';

const EDGE = 46;
const HEAD = 18;
const AXIS = 18;
const TALL = 62;
const LOW = 40;
const TILE_NAMED = 11; // exponent of the first tile whose appearance is marked
const DOTS = 40; // most marks: more would hide the curve
const ZOOMED = 10; // fewest moves that a zoom shows
const DRAGGED = 6; // fewest pixels of a drag; less is a click

/** The panels of a game: their series, and their words for a position. */
function panelsOf(game) {
  const panels = [];
  const last = game.count;
  if (game.state) {
    const unit = game.judge.unit;
    const range = extent(game.state);
    panels.push({keys: [[unit === 'points' ? `points to come${game.uncalibrated ? ', uncalibrated' : ''}` : `P(${game.judge.tile})`, 'c0']], height: TALL,
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

/** Curves of a game, with dots [position, grade], of which the largest losses are drawn. `onseek` gets the clicked
 * position, `onwheel` the events of the wheel. Dragging zooms into a range. */
export class Curves {
  constructor(onseek, onwheel) {
    this.canvas = el('canvas', {role: 'img'});
    this.line = el('div.playhead');
    this.tip = el('div.tip', {hidden: true});
    this.heads = el('div');
    this.band = el('div.band', {hidden: true});
    this.area = el('div.curve-area', null, this.canvas, this.heads, this.band, this.line, this.tip);
    this.whole = el('button.whole', {type: 'button', hidden: true, onclick: () => this.zoom()}, 'Whole game');
    this.node = el('div.curves', null, this.area, this.whole);
    [this.width, this.at, this.from, this.to] = [0, 0, 0, 1];
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }).observe(this.area);
    const xOf = event => Math.min(this.width, Math.max(EDGE, event.clientX - this.canvas.getBoundingClientRect().left));
    const positionOf = x => Math.round(this.from + (x - EDGE) / (this.width - EDGE) * (this.to - this.from));
    let began = null;
    const isDragged = event => began !== null && Math.abs(xOf(event) - began) >= DRAGGED;
    this.area.addEventListener('pointerdown', event => {
      this.area.setPointerCapture(event.pointerId);
      began = xOf(event);
    });
    this.area.addEventListener('pointermove', event => {
      const [x, dragged] = [xOf(event), isDragged(event)];
      this.band.hidden = !dragged;
      if (dragged) this.band.style.transform = `translateX(${Math.min(x, began)}px) scaleX(${Math.abs(x - began)})`;
      this.explain(this.dotNear(event) ?? positionOf(x));
    });
    this.area.addEventListener('pointerup', event => {
      if (isDragged(event)) this.zoom(...[positionOf(began), positionOf(xOf(event))].sort((a, b) => a - b));
      else if (began !== null) onseek(this.dotNear(event) ?? positionOf(xOf(event)));
      this.band.hidden = true;
      began = null;
      this.explain(positionOf(xOf(event)));
    });
    this.area.addEventListener('pointercancel', () => { [began, this.band.hidden] = [null, true]; });
    this.area.addEventListener('dblclick', () => this.zoom());
    this.area.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.area.addEventListener('wheel', onwheel, {passive: false});
  }

  take(game, dots) {
    const isNew = !this.game || game.count !== this.game.count;
    [this.game, this.panels] = [game, panelsOf(game)];
    this.dots = dots.sort((a, b) => game.loss[b[0]] - game.loss[a[0]]);
    if (isNew) [this.from, this.to] = [0, Math.max(1, game.count)];
    this.words = this.panels.map(panel => panel.keys.map(() => el('output')));
    fill(this.heads, this.panels.map((panel, i) => el('p.panel-head', null, panel.keys.map(([name, key], k) =>
      el(`span.key.${key}`, null, `${name} `, this.words[i][k])))));
    this.draw();
  }

  numberOf(at) { return this.game.numbers ? this.game.numbers[at] : at; }

  x(at) { return EDGE + (at - this.from) / (this.to - this.from) * (this.width - EDGE); }

  /** Show the moves of a range; without one, the whole game. */
  zoom(from = 0, to = Infinity) {
    const last = Math.max(1, this.game.count);
    const width = Math.min(last, Math.max(ZOOMED, to - from));
    this.from = Math.max(0, Math.min(from, last - width));
    this.to = this.from + width;
    this.draw();
  }

  zoomBy(factor) {
    const half = factor * (this.to - this.from) / 2;
    this.zoom(Math.round(this.at - half), Math.round(this.at + half));
  }

  /** Move the line to a position; a zoom follows it. */
  show(at) {
    const isOutside = () => at < this.from || at > this.to;
    const moved = at !== this.at;
    this.at = at;
    if (moved && isOutside()) this.zoomBy(1);
    this.line.hidden = isOutside();
    this.line.style.transform = `translateX(${this.x(at)}px)`;
    this.panels.forEach((panel, i) => panel.words(at).forEach((text, k) => setText(this.words[i][k], text)));
  }

  /** The position of the dot under the pointer; undefined without one. */
  dotNear(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const near = this.marks.filter(([at]) => Math.hypot(this.x(at) - x, this.dotY(at) - y) < 7);
    return near.length ? near[0][0] : undefined;
  }

  dotY(at) {
    const {low, high, height} = this.panels[0];
    return HEAD + height - (this.game.state[at] - low) / (high - low) * height;
  }

  explain(at) {
    const dot = this.dots.find(one => one[0] === at);
    fill(this.tip, el('b', null, `move ${count(this.numberOf(at))}`), dot ? el(`span.grade.${dot[1]}`, null, dot[1]) : null,
      this.panels.flatMap(panel => panel.words(at).map((text, k) => el('span', null, `${panel.keys[k][0]} ${text}`))));
    this.tip.hidden = false;
    const x = this.x(at);
    this.tip.style.transform = `translateX(${x > this.width / 2 ? `calc(${x - 10}px - 100%)` : `${x + 10}px`})`;
  }

  draw() {
    if (!this.game || !this.width) return;
    const scale = devicePixelRatio || 1;
    this.marks = this.dots.filter(([at]) => at >= this.from && at <= this.to).slice(0, DOTS);
    this.whole.hidden = this.to - this.from >= this.game.count;
    const names = this.panels.flatMap(one => one.keys.map(key => key[0]));
    const range = this.whole.hidden ? `${count(this.game.count)} moves`
      : `the moves from ${count(this.numberOf(this.from))} to ${count(this.numberOf(this.to))}`;
    this.canvas.setAttribute('aria-label',
      `Curves over ${range}: ${names.join(', ')}${this.marks.length ? `. Marked: ${counted(this.marks.length, 'loss')}` : ''}`);
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
    for (const [at, grade] of [...this.marks].reverse()) { // the largest losses on top
      context.fillStyle = colour(grade);
      context.strokeStyle = colour('card');
      context.beginPath();
      context.arc(this.x(at), this.dotY(at), {inaccuracy: 3, mistake: 4, blunder: 5}[grade], 0, 7);
      context.fill();
      context.stroke();
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
    context.save();
    context.beginPath();
    context.rect(EDGE, 0, pixels, top + height + 1);
    context.clip();
    const spans = (values, call) => eachSpan(values, this, pixels, call);
    for (const [values, name] of panel.series || []) {
      context.strokeStyle = colour(name);
      context.lineWidth = 1.4;
      context.lineJoin = 'round';
      context.beginPath();
      spans(values, (x, least, most) => {
        context.lineTo(EDGE + x, py(least));
        if (most !== least) context.lineTo(EDGE + x, py(most));
      });
      context.stroke();
    }
    for (const [values, name, sign] of panel.bars || []) {
      context.fillStyle = colour(name);
      const wide = Math.max(1, pixels / (this.to - this.from + 1) - 0.5);
      spans(values, (x, least, most) => {
        const ends = sign > 0 ? [least, most] : [-most, -least];
        const [from, to] = [py(Math.max(0, ends[1])), py(Math.min(0, ends[0]))];
        context.fillRect(EDGE + x, from, wide, Math.max(0, to - from));
      });
    }
    context.restore();
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
    ticks(this.from, this.to, Math.floor(this.width / 130)).filter(Number.isInteger).forEach((at, i) => {
      write(`${i ? '' : 'move '}${count(this.numberOf(at))}`, this.x(at), top + 13);
    });
    free = EDGE + 190;
    for (let exp = TILE_NAMED; exp < 16; exp++) {
      const at = game.highest.indexOf(exp);
      if (at <= this.from || at > this.to) continue;
      context.globalAlpha = 0.4;
      context.fillRect(Math.round(this.x(at)), HEAD, 1, top - HEAD);
      context.globalAlpha = 1;
      write(tileName(2 ** exp), this.x(at), HEAD - 4);
    }
  }
}

/** Call with the least and the greatest value of each pixel of a range of a game; there may be fewer values than moves. */
function eachSpan(values, {from, to, game}, pixels, call) {
  const step = values.length < game.count ? game.count / Math.max(1, values.length - 1) : 1;
  const first = Math.floor(from / step);
  const part = values.subarray(first, Math.ceil(to / step) + 1);
  const total = part.length;
  if (total <= pixels) {
    part.forEach((one, i) => {
      if (!Number.isNaN(one)) call(((first + i) * step - from) / (to - from) * pixels, one, one);
    });
    return;
  }
  for (let x = 0; x < pixels; x++) {
    let [least, most] = [Infinity, -Infinity];
    const end = Math.floor((x + 1) * total / pixels);
    for (let i = Math.floor(x * total / pixels); i < end; i++) {
      if (part[i] < least) least = part[i];
      if (part[i] > most) most = part[i];
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
