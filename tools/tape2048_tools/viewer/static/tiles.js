// A board of tiles that slides from one position to the next.

import {el, setText, tileName} from './dom.js';
import {slide, spokenBoard} from './rules.js';

const SLIDE_MS = 90;

// Of a picture, in its units.
const [TILE, GAP] = [100, 10];
export const PICTURE = 4 * TILE + 5 * GAP;

// An arrow up from the centre, between the tiles, and its rotation by move.
const ARROW = 'M48.6 47V13H45L50 4l5 9H51.4V47Z';
const TURNS = [0, 180, 270, 90];

export class Tiles {
  constructor(attributes) {
    this.cells = Array.from({length: 16}, () => el('div.tile.t0'));
    this.shown = new Uint8Array(16);
    this.arrows = ['made', 'best'].map(name => el(`path.${name}`, {d: ARROW, visibility: 'hidden'}));
    this.node = el('div.board', {role: 'img', 'aria-label': 'Board', ...attributes}, this.cells,
      el('svg.arrows', {viewBox: '0 0 100 100', 'aria-hidden': true}, this.arrows));
    this.calm = matchMedia('(prefers-reduced-motion: reduce)');
  }

  /** Show the 16 exponents that start at a position of an array. If the move from the shown board is known, slide the
   * tiles. Mark the cell of the spawn. */
  show(exps, at = 0, move = -1, spawned = -1) {
    let ways = null;
    if (move >= 0 && move < 4 && !this.calm.matches) {
      ways = [];
      slide(this.shown, 0, move, new Uint8Array(16), 0, ways);
    }
    for (let cell = 0; cell < 16; cell++) {
      const exp = exps[at + cell];
      const name = cell === spawned ? `tile spawned t${exp}` : `tile t${exp}`;
      if (this.cells[cell].className !== name) this.cells[cell].className = name;
      if (exp !== this.shown[cell]) setText(this.cells[cell], exp ? String(2 ** exp) : '');
      this.shown[cell] = exp;
    }
    if (ways) this.slideTo(ways);
  }

  /** Point at the move that was made, and at the best move; -1 for none. If they are the same, one arrow is shown. */
  point(made, best) {
    [made === best ? -1 : made, best].forEach((move, i) => {
      this.arrows[i].setAttribute('visibility', move >= 0 && move < 4 ? 'visible' : 'hidden');
      if (move >= 0 && move < 4) this.arrows[i].setAttribute('transform', `rotate(${TURNS[move]} 50 50)`);
    });
  }

  slideTo(ways) {
    const reached = new Set(ways.map(way => way[1]));
    const size = this.node.clientWidth / 4;
    for (const [from, to, merged] of ways) {
      const [dx, dy] = [(from & 3) - (to & 3), (from >> 2) - (to >> 2)];
      const node = this.cells[to];
      if (dx || dy) {
        node.animate([{transform: `translate(${dx * size}px, ${dy * size}px)`, zIndex: 1}, {transform: 'none'}],
          {duration: SLIDE_MS, easing: 'ease-out'});
      }
      if (merged) {
        node.animate([{scale: 1}, {scale: 1.08}, {scale: 1}], {delay: SLIDE_MS, duration: SLIDE_MS});
      }
    }
    for (let cell = 0; cell < 16; cell++) {
      if (this.shown[cell] && !reached.has(cell)) {
        this.cells[cell].animate([{scale: 0.2, opacity: 0}, {scale: 1, opacity: 1}],
            {duration: SLIDE_MS, delay: SLIDE_MS / 2,
          fill: 'backwards'});
      }
    }
  }

  /** The shown board as SVG, in its colours. */
  svg() {
    const box = (place, size, round, node, more = '') => `<rect ${place} width="${size}" height="${size}" rx="${round}" fill="${
      getComputedStyle(node).backgroundColor}"/>${more}`;
    const cells = this.cells.map((cell, at) => {
      const [x, y] = [at & 3, at >> 2].map(one => GAP + one * (TILE + GAP));
      const size = TILE * [0.4, 0.4, 0.4, 0.4, 0.33, 0.27][cell.textContent.length];
      return box(`x="${x}" y="${y}"`, TILE, 4, cell, `<text x="${x + TILE / 2}" y="${y + TILE / 2}" font-size="${size}" fill="${
        getComputedStyle(cell).color}">${cell.textContent}</text>`);
    });
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${PICTURE}" height="${PICTURE}" viewBox="0 0 ${PICTURE} ${PICTURE}" `
      + 'font-family="sans-serif" font-weight="700" text-anchor="middle" dominant-baseline="central">'
      + `${box('', PICTURE, 10, this.node)}${cells.join('')}</svg>`;
  }

  /** Update the board's text for screen readers; not on every frame. */
  speak() {
    this.node.setAttribute('aria-label', spokenBoard(this.shown, 0));
  }
}

/** A small board without animation. Large tiles are written as 1K, 2K, 32K. */
export function smallBoard(exps, label) {
  return el('div.board.small', {role: 'img', 'aria-label': label || spokenBoard(exps, 0)},
    Array.from(exps, exp => el(`div.tile.t${exp}`, null, tileName(exp && 2 ** exp))));
}
