// Whole games from each move of a board, played by the server: what the moves are worth, without a judge.

import {refusalNode} from './api.js';
import {count, el, fill, percent, setText, table} from './dom.js';
import {MOVE_NAMES, MOVE_SIGNS} from './rules.js';

const GAMES = 100;
const POLL_MS = 500;

/** A button that plays on, and its results. `ask(more, moves)` returns the results so far and starts more games, of
 * the two moves that `pair()` returns, or of each move. */
export class Rollouts {
  constructor(ask, pair = () => null) {
    [this.ask, this.pair, this.asked] = [ask, pair, 0];
    this.button = el('button', {type: 'button', onclick: () => this.play()});
    this.told = el('p.soft', {role: 'status'});
    this.shown = el('div');
    this.node = el('div.rollouts', null, this.button, this.told, this.shown);
  }

  clear() {
    this.asked++;
    this.moves = this.pair();
    setText(this.button, `Play ${this.moves ? 'both' : 'each move'} on, ${GAMES} games`);
    this.button.disabled = false;
    if (this.shown.firstChild) fill(this.shown);
    setText(this.told, '');
  }

  async play() {
    const mine = ++this.asked;
    const isShown = () => mine === this.asked && this.node.isConnected;
    this.button.disabled = true;
    try {
      for (let more = GAMES, found = {running: true}; found.running; more = 0) {
        found = await this.ask(more, this.moves ? this.moves.join() : '');
        if (!isShown()) return;
        this.draw(found);
        if (found.running) await new Promise(done => setTimeout(done, POLL_MS));
        if (!isShown()) return;
      }
      setText(this.button, `Play ${GAMES} more games`);
    } catch (error) {
      if (isShown()) fill(this.shown, refusalNode(error));
    } finally {
      if (mine === this.asked) this.button.disabled = false;
    }
  }

  draw({moves, games, wanted, running, tile, seconds, difference}) {
    const of = running ? `Playing: ${count(games)} of ${count(wanted)}` : count(games);
    setText(this.told, `${of} games from ${this.moves ? 'both moves' : 'each move'}, ${count(seconds)} s. The intervals are those of 95%. ${
      difference}`);
    const rows = moves.map(one => [
      `${MOVE_SIGNS[one.move]} ${MOVE_NAMES[one.move]}`, `${count(one.score)} ± ${count(1.96 * one.error)}`,
      `${percent(one.share)} (${percent(one.low)} to ${percent(one.high)})`]);
    if (rows.length) fill(this.shown, table('Games played on', ['move', '>score that came', `>reached ${tile}`], rows));
  }
}
