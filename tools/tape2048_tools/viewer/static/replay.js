// The page that replays a game: the board, the curves, loss and luck, and the keys.

import {count, counted, eachFrame, el, facts, fill, playerChoice, setText, table, valued} from './dom.js';
import {Curves} from './curves.js';
import {expandGame, MOVE_NAMES, MOVE_SIGNS, spawnAfter} from './rules.js';
import {Tiles} from './tiles.js';

const LISTED_LOSSES = 50;
const SPEEDS = [2, 5, 10, 30, 60, 240];

/** A packed game in a line. */
export function describeGame(packed) {
  const counts = `score ${count(packed.score)} · ${count(packed.length)} moves · highest ${packed.highest}`;
  return `${packed.name} · ${packed.player} · ${counts} · seed ${packed.seed}`;
}

/** Positions of the largest losses, the largest first. */
export function largestLosses(game) {
  if (!game.loss) return [];
  const found = [];
  for (let i = 0; i < game.count; i++) if (game.loss[i] > 0) found.push(i);
  return found.sort((a, b) => game.loss[b] - game.loss[a]).slice(0, LISTED_LOSSES);
}

/** The best move of each position by a judge's values; -1 without one. */
function bestMoves(values, total) {
  const found = new Int8Array(total);
  for (let i = 0; i < total; i++) {
    let best = -1;
    for (let move = 0; move < 4; move++) {
      const value = values[4 * i + move];
      if (!Number.isNaN(value) && (best < 0 || value > values[4 * i + best])) best = move;
    }
    found[i] = best;
  }
  return found;
}

/** Positions at which two games have the same board and another move. */
function differences(game, other) {
  const found = [];
  for (let i = 0; i < Math.min(game.count, other.count); i++) {
    if (game.moves[i] === other.moves[i]) continue;
    const same = game.boards.subarray(16 * i, 16 * i + 16).every((exp, cell) => exp === other.boards[16 * i + cell]);
    if (same) found.push(i);
  }
  return found;
}

/**
 * Replays a packed game. `options`: link(step) makes the link to a moment, onstep(step) is told each position,
 * judges and onjudge(number) offer other judges, second(number) resolves to the game judged by another one, players and
 * choices(player) compare with players, other is the game beside, and suffix tells this one's tables from its.
 */
export class Replay {
  constructor(packed, options = {}) {
    this.game = expandGame(packed);
    this.options = options;
    this.at = 0;
    this.timer = 0;
    this.speed = 10;
    this.losses = largestLosses(this.game);
    this.inOrder = [...this.losses].sort((a, b) => a - b);
    this.best = this.game.values ? bestMoves(this.game.values, this.game.count) : null;
    this.other = null;
    this.build();
    this.render = eachFrame(move => { if (this.stage.isConnected) this.paint(move); }); // else another page is shown
  }

  /** Number of the move before which the board at a position stood. */
  numberOf(position) {
    return this.game.numbers ? this.game.numbers[position] : position;
  }

  positionOf(number) {
    if (!this.game.numbers) return number;
    let at = 0;
    while (at < this.game.count && this.game.numbers[at] < number) at += 1;
    return at;
  }

  build() {
    const {game} = this;
    this.tiles = new Tiles();
    this.tiles.node.addEventListener('wheel', event => {
      event.preventDefault();
      this.go(this.at + (event.deltaY > 0 ? 1 : -1));
    }, {passive: false});
    this.slider = el('input', {type: 'range', min: 0, max: game.count, value: 0, step: 1,
        'aria-label': 'Position in the game'});
    this.slider.addEventListener('input', () => this.go(Number(this.slider.value)));
    const button = (label, sign, act) => el('button',
        {type: 'button', 'aria-label': label, title: label, onclick: act}, sign);
    this.playButton = button('Play', '▶', () => this.toggle());
    this.speedChoice = el('select', {'aria-label': 'Moves a second'}, SPEEDS.map(speed =>
      el('option', {value: speed, selected: speed === this.speed}, `${speed}/s`)));
    this.speedChoice.addEventListener('change', () => {
      this.speed = Number(this.speedChoice.value);
      if (this.timer) this.play();
    });
    this.where = el('p.where', {'aria-live': 'off'});
    this.made = el('p.made');
    this.values = el('div.values');
    this.curves = new Curves(game, at => this.go(at));
    const controls = el('div.controls', null,
      button('First board', '«', () => this.go(0)), button('Back', '‹', () => this.go(this.at - 1)), this.playButton,
      button('Forward', '›', () => this.go(this.at + 1)), button('Last board', '»', () => this.go(game.count)),
          this.speedChoice);
    const jumps = game.loss ? el('div.controls', null,
      button('Previous large loss', '← loss', () => this.jump(this.inOrder, -1)),
          button('Next large loss', 'loss →', () => this.jump(this.inOrder, 1)),
      this.best ? button('Previous disagreement', '← differs', () => this.jump(this.disagreements(), -1)) : null,
      this.best ? button('Next disagreement', 'differs →', () => this.jump(this.disagreements(), 1)) : null) : null;
    this.stage = el('div.stage', null, el('div.board-side', null, this.tiles.node, this.slider, controls, jumps),
      el('div.move-side', null, this.where, this.made, this.judgeChoice(), this.values, this.boardLink()));
    this.node = el('div.replay', null, this.stage, this.curves.node, this.summary());
    this.go(0);
  }

  /** A link to the page of the board, whose address is made when it is used. */
  boardLink() {
    if (!this.options.judges) return null;
    const aim = event => {
      const exps = this.game.boards.subarray(16 * this.at, 16 * this.at + 16);
      event.currentTarget.href = `#board?board=${Array.from(exps, exp => exp.toString(16)).join('')}`;
    };
    return el('p', null, el('a', {href: '#board', onclick: aim, onmousedown: aim},
      'Open this board: its moves, and play on from it'));
  }

  judgeChoice() {
    const {judges, onjudge} = this.options;
    if (!judges) return this.game.judge ? el('p.soft', null, `judged by ${this.game.judge.name}`) : null;
    const choice = el('select', null, judges.map(one => el('option',
        {value: one.number, selected: one.number === this.game.judge.number}, one.name)));
    choice.addEventListener('change', () => onjudge(Number(choice.value)));
    const against = playerChoice(this.options.players, 'Compared with (student)', [['', 'the moves that were made'],
      ...judges.filter(one => one.number !== this.game.judge.number).map(one => [one.number, one.name])],
    () => this.compare(against));
    this.told = el('p.soft', {role: 'status'});
    return el('div.choices', null, el('label', null, 'Judged by (teacher)', choice), this.best ? against.nodes : null,
      this.told);
  }

  /** Compare the judge with what is chosen: the moves that were made, another judge, or a player. */
  async compare(against) {
    const value = against.value();
    this.chosen = value;
    fill(this.told, value ? 'Choosing…' : '');
    let [other, told] = [null, ''];
    try {
      if (against.isPlayer()) {
        const {moves} = await this.options.choices(value);
        other = {best: Array.from({length: this.game.count}, (_, i) => moves[i] < 4 ? moves[i] : -1)};
        if (moves.length < this.game.count) {
          told = `${value} is slow: it chose on the first ${counted(moves.length, 'board')} only.`;
        }
      } else if (value) {
        other = {best: bestMoves((await this.options.second(Number(value))).values, this.game.count)};
      }
    } catch (error) {
      told = `${error.message} ${error.hint || ''}`;
    }
    if (this.chosen !== value) return; // something else was chosen meanwhile
    [this.other, this.differing] = [other, null];
    fill(this.told, told);
    this.paint(-1);
  }

  /** In words, where the game and the one beside it differ. */
  common() {
    const found = differences(this.game, this.options.other).length;
    return found ? `On ${counted(found, 'board')} that both have, they differ in the move.`
      : 'They have no board in common on which they differ.';
  }

  /**
   * Positions at which the two games differ on the same board; without such, those at which the judge would not make
   * the move that was made, or that the other judge or player would make.
   */
  disagreements() {
    if (!this.differing) {
      const {other} = this.options;
      this.differing = other && !this.other ? differences(this.game, other) : [];
      if (this.differing.length || !this.best) return this.differing;
      const against = this.other ? this.other.best : this.game.moves;
      for (let i = 0; i < this.game.count; i++) {
        if (this.best[i] >= 0 && against[i] >= 0 && this.best[i] !== against[i]) this.differing.push(i);
      }
    }
    return this.differing;
  }

  summary() {
    const {game} = this;
    if (!game.loss) return el('p.soft', null, 'Loss and luck need every board of a game and its moves.');
    const unit = game.judge.unit;
    const total = values => values.reduce((sum, value) => sum + (Number.isNaN(value) ? 0 : value), 0);
    const [loss, luck] = [total(game.loss), total(game.luck)];
    const gained = unit === 'points' ? game.scores[game.count] : 0;
    const [first, last] = [game.state[0], game.state[game.count]];
    const rest = gained + last - first - luck + loss;
    const account = facts([
      [unit === 'points' ? 'value of the first board' : `P(${game.judge.tile}) of the first board`,
          valued(first, unit)], ['+ luck of the spawns', valued(luck, unit)],
      ['− loss of the moves', valued(loss, unit)],
          ['+ revision: boards seen again one move later', valued(rest, unit)],
      [unit === 'points' ? '= score and what is to come' : '= at the end', valued(gained + last, unit)]]);
    const list = this.losses.length ? table('Largest losses',
        ['move', '>loss', 'made', ...(this.best ? ['better'] : [])], this.losses.map(at => [
      el('a', {href: this.options.link ? this.options.link(this.numberOf(at)) : '#', onclick: event => {
        event.preventDefault();
        this.go(at);
        this.tiles.node.scrollIntoView({block: 'nearest'});
      }}, count(this.numberOf(at))),
      valued(game.loss[at], unit), MOVE_NAMES[game.moves[at]] || '?',
          ...(this.best ? [MOVE_NAMES[this.best[at]] || '–'] : [])])) :
      el('p.soft', null, 'No move has a loss.');
    return el('div.columns', null, el('section', null, el('h2', null, 'Account of the game'), account),
      el('section.losses', null, el('h2', null, 'Losses'), list));
  }

  /** Go to a position. */
  go(at) {
    const to = Math.max(0, Math.min(this.game.count, at));
    const move = to === this.at + 1 && this.speed <= 10 ? this.game.moves[this.at] : -1;
    this.at = to;
    if (this.render) this.render(move);
    else this.paint(-1);
  }

  paint(move) {
    const {game, at} = this;
    this.tiles.show(game.boards, 16 * at, move);
    this.slider.value = at;
    this.curves.show(at);
    const score = game.boards && game.steps ? ` · score ${count(game.scores[at])}` : '';
    setText(this.where, `move ${count(this.numberOf(at))} of ${count(this.numberOf(game.count))}${score}`);
    setText(this.made, this.wordsOf(at));
    this.paintValues();
    if (this.options.onstep) this.options.onstep(this.numberOf(at));
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      this.slider.setAttribute('aria-valuetext', `move ${this.numberOf(this.at)}`);
      this.tiles.speak();
    }, 200);
  }

  wordsOf(at) {
    const {game} = this;
    if (at === game.count) return 'the last board';
    const move = game.moves[at];
    if (move > 3) return 'the move is not known';
    const spawn = spawnAfter(game, at);
    return `${MOVE_SIGNS[move]} ${MOVE_NAMES[move]}`
        + (spawn ? `, then a ${spawn[1]} in row ${(spawn[0] >> 2) + 1}, column ${(spawn[0] & 3) + 1}` : '');
  }

  /** The table of the four moves; made once, then only its texts change. */
  paintValues() {
    const {game, at} = this;
    if (!game.loss) return;
    const unit = game.judge.unit;
    if (!this.valueCells) {
      this.valueCells = [0, 1, 2, 3].map(() => [el('span'), el('span')]);
      this.lossCell = el('span');
      this.luckCell = el('span');
      const caption = unit === 'points' ? 'Values of the moves' : `P(${game.judge.tile}) after each move`;
      const rows = game.values ? table(caption + (this.options.suffix || ''), ['move', '>value', 'note'],
        this.valueCells.map(([value, note], move) => [`${MOVE_SIGNS[move]} ${MOVE_NAMES[move]}`, value, note]))
            : null;
      fill(this.values, rows, facts([['loss of the move', this.lossCell], ['luck of the spawn', this.luckCell]]));
    }
    const ended = at === game.count;
    setText(this.lossCell, ended ? '–' : valued(game.loss[at], unit));
    setText(this.luckCell, ended ? '–' : valued(game.luck[at], unit));
    if (!game.values) return;
    this.valueCells.forEach(([value, note], move) => {
      const found = ended ? NaN : game.values[4 * at + move];
      setText(value, valued(found, unit));
      const notes = [!ended && game.moves[at] === move ? 'made' : '', !ended && this.best[at] === move ? 'best' : '',
        !ended && this.other && this.other.best[at] === move ? 'best of the other' : ''];
      setText(note, notes.filter(Boolean).join(', '));
    });
  }

  /** Go to the next or the previous of some positions. */
  jump(positions, way) {
    const found = way > 0 ? positions.find(one => one > this.at) : positions.findLast(one => one < this.at);
    if (found !== undefined) this.go(found);
  }

  toggle() {
    if (this.timer) this.stop();
    else this.play();
  }

  play() {
    this.stop();
    if (this.at === this.game.count) this.go(0);
    this.playButton.textContent = 'II';
    this.playButton.setAttribute('aria-label', 'Pause');
    let before = performance.now();
    const tick = now => {
      const steps = Math.floor((now - before) * this.speed / 1000);
      if (steps > 0) {
        before += steps * 1000 / this.speed;
        this.go(this.at + steps);
      }
      if (this.at === this.game.count || !this.node.isConnected) this.stop();
      else this.timer = requestAnimationFrame(tick);
    };
    this.timer = requestAnimationFrame(tick);
  }

  stop() {
    cancelAnimationFrame(this.timer);
    this.timer = 0;
    this.playButton.textContent = '▶';
    this.playButton.setAttribute('aria-label', 'Play');
  }

  /** Act on a key; return whether it meant something. */
  key(event) {
    const step = event.shiftKey ? 10 : 1;
    const acts = {
      ArrowLeft: () => this.go(this.at - step), ArrowRight: () => this.go(this.at + step),
      ArrowUp: () => this.go(this.at - step), ArrowDown: () => this.go(this.at + step),
      PageUp: () => this.go(this.at - 100), PageDown: () => this.go(this.at + 100),
      Home: () => this.go(0), End: () => this.go(this.game.count),
      n: () => this.jump(this.inOrder, 1), p: () => this.jump(this.inOrder, -1),
      ']': () => this.jump(this.disagreements(), 1),
      '[': () => this.jump(this.disagreements(), -1),
      ' ': () => this.toggle(),
    };
    const act = acts[event.key];
    if (!act) return false;
    act();
    return true;
  }
}

/** The keys of a replay, for the help. */
export const REPLAY_KEYS = [
  ['← →', 'a move back, forward (with Shift: ten)'], ['Page Up, Page Down', 'a hundred moves'],
      ['Home, End', 'the first, the last board'],
  ['Space', 'play, pause'], ['n p', 'the next, the previous large loss'],
      ['[ ]', 'the previous, the next disagreement'], ['wheel', 'over the board: moves'],
];
