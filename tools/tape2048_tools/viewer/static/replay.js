// The page that replays a game: the board, the values of its moves, the mistakes, the curves, and the keys.

import {count, counted, download, eachFrame, el, facts, fill, message, percent, playerChoice, setText, table,
  valued} from './dom.js';
import {Curves} from './curves.js';
import {expandGame, MOVE_NAMES, MOVE_SIGNS, slide, spawnAfter} from './rules.js';
import {PICTURE, Tiles} from './tiles.js';

const LISTED_LOSSES = 50;
const SPEEDS = [2, 5, 10, 30, 60, 240];
const ARROW_KEYS = ['ArrowUp', 'ArrowDown', 'ArrowLeft', 'ArrowRight']; // of each move

/** Fill a page with a replay that opens at a move, below its title and a refusal, and above more nodes. */
export function replayPage(main, shell, shown, packed, move, refused, ...more) {
  const told = `score ${count(packed.score)} · ${count(packed.length)} moves · highest ${packed.highest} · ${packed.player} · ${
    packed.name} · seed ${packed.seed}`;
  fill(main, el('div.title', null, el('h1', null, `Game ${packed.run}`), el('p.lead', {title: told}, told)),
    refused, shown.node, more, [packed.strange, ...packed.notes].filter(Boolean).map(note => el('p.soft', null, note)));
  shell.hold(shown);
  shown.open(move);
}

/** The unit of a game's points, if they are not the score that comes. */
export const pointsOf = game => game.uncalibrated ? ", uncalibrated, in the network's points" : '';

/** The judge, and whose games its points assume. */
export const judgeTold = one => `Judged by ${one.by}.${
  one.assumes ? ` Points are the score that comes if ${one.assumes} continues the game.` : ''}`;

/** Whether a game has grades: not if the judge may be weaker than the player, or is not calibrated. */
const isGraded = game => !game.weak && !game.uncalibrated;

/** The grade of a move; '' for a small loss. */
const gradeOf = (game, at) => isGraded(game) ? ['', 'inaccuracy', 'mistake', 'blunder'][game.grade[at]] : '';

const gradesTold = game => isGraded(game) ? `Grades by ${game.judge.unit === 'points' ?
  'the share of the score to come, or the probability of the next tile, that a move costs' : 'loss'}: ${
  game.grades.map(([name, least]) => `${name} from ${100 * least}%`).join(', ')}.${
  game.spread ? ' After ±: the standard error of a loss.' : ''}` : '';

/** The loss of a move, as exact as its standard error if that is known. */
const lossOf = (game, at) => {
  const [loss, error] = [game.loss[at], game.spread ? game.spread[at] : 0];
  if (!(loss > 0 && error > 0)) return valued(loss, game.judge.unit);
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(Math.min(loss, error))));
  return [loss, error].map(value => count(Math.round(value / unit) * unit)).join(' ± ');
};

/** What a move costs: its loss, and the fall of the probability of the next tile. */
function costOf(game, at) {
  if (!game.reach || !(game.loss[at] > 0) || game.moves[at] > 3) return lossOf(game, at);
  const [best, made] = [game.reach[at], game.reach[game.count + at]];
  const fall = best - made >= 0.005 ? `; ${2 << game.highest[at]} falls from ${percent(best)} to ${percent(made)}` : '';
  return `about ${lossOf(game, at)}${fall}`;
}

function largestLosses(game) {
  return Array.from(game.loss || [], (loss, at) => loss > 0 ? at : -1).filter(at => at >= 0)
    .sort((a, b) => game.loss[b] - game.loss[a]).slice(0, LISTED_LOSSES);
}

/** The best move of each position by a judge's values; -1 without one. A move without a loss is as good. */
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

/** Replays a packed game. `options`: link(step) returns the link to a move, onstep(step) gets each move, judges are
 * the judges, judged(number) resolves to the game judged by a judge as far as time allowed, onjudge(number) gets a
 * chosen judge, save(judge, step) resolves to a file of the game, players and choices(player) are for the comparison
 * with players, other is the game beside it, beside and more are that game's nodes, rollouts plays the board on, and
 * suffix marks the tables of this game. */
export class Replay {
  constructor(packed, options = {}) {
    [this.options, this.at, this.timer, this.speed, this.other] = [options, 0, 0, 10, null];
    this.tally = null; // of the mistakes that the user tries: [best moves, all moves]
    this.puzzle = null; // the position whose answer is hidden
    this.build();
    this.take(packed);
    // Do not paint if another page is shown meanwhile.
    this.render = eachFrame(move => { if (this.boardSide.isConnected) this.paint(move); });
  }

  /** Number of the move after the board at a position. */
  numberOf(position) { return this.game.numbers ? this.game.numbers[position] : position; }

  positionOf(number) {
    if (!this.game.numbers) return number;
    const at = this.game.numbers.findIndex(one => one >= number);
    return at < 0 ? this.game.count : at;
  }

  build() {
    this.tiles = new Tiles();
    this.slider = el('input', {type: 'range', min: 0, value: 0, step: 1, 'aria-label': 'Position in the game'});
    this.slider.addEventListener('input', () => this.go(Number(this.slider.value)));
    const button = (label, sign, act) => el('button',
        {type: 'button', 'aria-label': label, title: label, onclick: act}, sign);
    this.playButton = button('Play', '▶', () => this.timer ? this.stop() : this.play());
    this.speedChoice = el('select', {'aria-label': 'Moves a second'}, SPEEDS.map(speed =>
      el('option', {value: speed, selected: speed === this.speed}, `${speed}/s`)));
    this.speedChoice.addEventListener('change', () => {
      this.speed = Number(this.speedChoice.value);
      if (this.timer) this.play();
    });
    const wheel = event => {
      if (event.ctrlKey) return; // zooms
      event.preventDefault();
      this.go(this.at + ((event.deltaY || event.deltaX) > 0 ? 1 : -1));
    };
    this.tiles.node.addEventListener('wheel', event => { if (event.shiftKey || event.altKey) wheel(event); },
      {passive: false});
    this.curves = new Curves(at => this.go(at), wheel);
    this.where = el('p.where', {'aria-live': 'off'});
    this.made = el('p.made');
    [this.values, this.missing, this.warning, this.list, this.account] = ['div.values', 'div', 'div', 'div.list', 'div']
      .map(name => el(name));
    this.told = el('p.soft', {role: 'status'});
    this.notice = el('p.notice', {role: 'status'});
    this.guesses = MOVE_SIGNS.map((sign, move) => button(`Move ${MOVE_NAMES[move]}`, sign, () => this.guess(move)));
    this.forth = el('button', {type: 'button', onclick: () => this.puzzle === null ? this.retry() : this.guess(-1)});
    this.trials = el('div.trials', {hidden: true}, this.notice, el('div', null, this.guesses, this.forth,
      el('button', {type: 'button', onclick: () => this.endRetry()}, 'End')));
    this.tryButton = button('Try the mistakes yourself (r)', 'Try', () => this.retry());
    this.boardSide = el('div.board-side', null, this.tiles.node, this.slider, el('div.controls', null,
      button('First board', '«', () => this.go(0)), button('Back', '‹', () => this.go(this.at - 1)), this.playButton,
      button('Forward', '›', () => this.go(this.at + 1)),
      button('Last board', '»', () => this.go(this.game.count)), this.speedChoice), this.trials);
    this.moveSide = el('div.move-side', null, this.where, this.made, this.values, this.judgeChoice(), this.told,
      this.missing, this.warning, this.options.rollouts, this.boardLink(), this.share());
    this.jumpers = [['mistake', 'Mistakes or worse', 'p', 'n', () => this.mistakes],
      ['difference', 'Differences', '[', ']', () => this.disagreements()]].map(one => this.jumper(...one));
    this.jumpers[0].node.append(this.tryButton);
    const {beside, more} = this.options;
    this.node = el(beside ? 'div.replay.two' : 'div.replay', null, this.boardSide, this.moveSide, beside,
      el('section.losses', {'aria-label': 'Mistakes'}, this.jumpers.map(one => one.node), this.list), this.curves.node,
      more, this.account);
  }

  /** Buttons to the previous and the next of some positions, and a counter between them. */
  jumper(noun, title, back, forth, positions) {
    const told = el('output');
    const button = (label, key, sign, way) => el('button', {type: 'button', title: `${label} (${key})`,
      'aria-label': label, onclick: () => this.jump(positions(), way)}, sign);
    const show = () => {
      const rank = positions().filter(one => one <= this.at).length;
      const here = rank && positions()[rank - 1] === this.at;
      setText(told, `${here ? `${count(rank)} of ` : ''}${count(positions().length)}`);
    };
    return {show, node: el('p.jumper', null, el('b', null, title), button(`Previous ${noun}`, back, '‹', -1), told,
      button(`Next ${noun}`, forth, '›', 1))};
  }

  take(packed) {
    const game = expandGame(packed);
    this.game = game;
    this.losses = largestLosses(game);
    this.best = game.values ? bestMoves(game.values, game.count) : null;
    if (this.best) game.loss.forEach((loss, at) => { if (loss === 0) this.best[at] = game.moves[at]; });
    this.differing = null;
    this.rows = null;
    this.slider.max = game.count;
    const dots = Array.from(game.loss || [], (loss, at) => [at, gradeOf(game, at)]).filter(dot => dot[1]);
    this.mistakes = dots.filter(dot => dot[1] !== 'inaccuracy').map(dot => dot[0]);
    this.jumpers[0].node.hidden = !isGraded(game);
    this.curves.take(game, dots);
    this.buildValues();
    fill(this.warning, [game.warning, game.weak].filter(Boolean).map(text => message(text, null, 'warn')));
    setText(this.told, game.pending ? `Judging: the last ${counted(game.count - game.pending, 'move')} so far.` : '');
    this.buildList(dots);
    this.buildAccount();
    this.tryButton.hidden = !this.best || !this.mistakes.length;
    this.endRetry();
  }

  /** A link to the page of the board, whose address is made when it is used. */
  boardLink() {
    if (!this.options.judges) return null;
    const aim = event => { event.currentTarget.href = `#board?board=${this.hex()}`; };
    return el('p', null, el('a', {href: '#board', onclick: aim, onmousedown: aim},
      'Open this board: its moves, and play on from it'));
  }

  exps() { return Array.from(this.game.boards.subarray(16 * this.at, 16 * this.at + 16)); }

  hex() { return this.exps().map(exp => exp.toString(16)).join(''); }

  /** Buttons that save the game or the board, and copy the board as commands and pages read it. */
  share() {
    const {save} = this.options;
    const tiles = () => this.exps().map(exp => exp ? 2 ** exp : 0);
    const part = (verb, acts) => [el('span', {'aria-hidden': true}, verb), acts.filter(Boolean).map(([what, act]) =>
      el('button', {type: 'button', 'aria-label': `${verb} ${what}`,
        onclick: () => act().catch(error => setText(this.told, error.message))}, what))];
    return el('p.share', null, part('Save', [save && ['this game', async () => download(
      await save(this.game.judge.number, this.numberOf(this.at)), `game-${this.game.run}.html`)],
    ['SVG', () => this.savePicture('svg')], ['PNG', () => this.savePicture('png')]]), part('Copy', [
      ['tiles', () => this.copy([0, 4, 8, 12].map(row => tiles().slice(row, row + 4).join(' ')).join(' / '))],
      ['0x…', () => this.copy(`0x${this.hex()}`)]]));
  }

  async savePicture(kind) {
    const svg = this.tiles.svg();
    const canvas = el('canvas', {width: 2 * PICTURE, height: 2 * PICTURE});
    if (kind === 'png') {
      const image = new Image();
      image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
      await image.decode();
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    }
    download(kind === 'svg' ? svg : await new Promise(done => canvas.toBlob(done)), `board-${this.numberOf(this.at)}.${kind}`);
  }

  async copy(text) {
    // The browser allows it on secure pages only.
    const told = await navigator.clipboard.writeText(text).then(() => 'Copied:', () => 'Copy it:');
    setText(this.told, `${told} ${text}`);
  }

  /** Go to the move of a link. If that move has no board, the page shows a message. */
  open(number) {
    const [at, last] = [this.positionOf(number), this.game.count];
    this.go(at);
    const missing = at > last || this.numberOf(at) !== number;
    fill(this.missing, missing ? message(`Move ${count(number)} has no recorded board. This is the board before move ${
      count(this.numberOf(this.at))}.`, null, 'warn') : null);
  }

  judgeChoice() {
    const {judges, players, judge} = this.options;
    if (!judges) return null;
    const choice = el('select', null, judges.map(one => el('option',
        {value: one.number, selected: one.number === judge}, one.name)));
    choice.addEventListener('change', () => {
      this.options.onjudge(Number(choice.value));
      this.judgeBy(Number(choice.value));
    });
    const against = playerChoice(players, 'Compare with', [['', 'the moves made'],
      ...judges.map(one => [one.number, one.name])], () => this.compare(against));
    return el('div.choices', null, el('label', null, 'Judge', choice), against.nodes);
  }

  /** The game by a judge, again and again until all moves are judged, the last moves first. */
  async* judgements(number) {
    let packed;
    do yield packed = await this.options.judged(number); while (packed.pending);
  }

  /** Show the judgement of another judge. The last choice counts. */
  async judgeBy(number) {
    this.asked = number;
    if (!this.game.pending) setText(this.told, 'Judging…');
    try {
      for await (const packed of this.judgements(number)) {
        if (this.asked !== number || !this.node.isConnected) return;
        this.take(packed);
      }
    } catch (error) {
      if (this.asked === number) setText(this.told, `${error.message} ${error.hint || ''}`);
    }
  }

  /** Compare the judge with a choice: the moves that were made, another judge, or a player. */
  async compare(against) {
    const value = against.value();
    this.chosen = value;
    setText(this.told, value ? 'Choosing…' : '');
    let [other, told] = [null, ''];
    try {
      if (against.isPlayer()) {
        const {moves} = await this.options.choices(value);
        other = {best: Array.from({length: this.game.count}, (_, i) => moves[i] < 4 ? moves[i] : -1)};
        if (moves.length < this.game.count) {
          told = `${value} is slow: it chose moves for the first ${counted(moves.length, 'board')} only.`;
        }
      } else if (value) {
        for await (const {values} of this.judgements(Number(value))) other = {best: bestMoves(values, this.game.count)};
      }
    } catch (error) {
      told = `${error.message} ${error.hint || ''}`;
    }
    if (this.chosen !== value) return; // the choice has changed meanwhile
    [this.other, this.differing] = [other, null];
    setText(this.told, told);
    this.paint(-1);
  }

  /** Describe where the game differs from the game beside it. */
  common() {
    const found = differences(this.game, this.options.other).length;
    return `The games have ${found ? counted(found, 'board') : 'no board'} in common on which their moves differ.`;
  }

  /** Positions at which the two games make different moves on the same board. If there are none: positions at which the
   * judge prefers another move to the move that was made, or that the other judge or player would make. */
  disagreements() {
    if (!this.differing) {
      const {other} = this.options;
      this.differing = other && !this.other ? differences(this.game, other) : [];
      if (this.differing.length || !this.best) return this.differing;
      const against = this.other ? this.other.best : this.game.moves;
      for (let i = 0; i < this.game.count; i++) {
        const [best, its] = [this.best[i], against[i]];
        const isTied = best === its || this.game.values[4 * i + best] === this.game.values[4 * i + its];
        if (best >= 0 && its >= 0 && !isTied) this.differing.push(i);
      }
    }
    return this.differing;
  }

  buildList(dots) {
    const {game} = this;
    fill(this.list, el('p.soft', null, 'Loss and luck need every board and every move.'));
    if (!game.loss) return;
    const unit = game.judge.unit;
    const counts = [...game.grades].reverse().map(([grade]) => [grade, dots.filter(one => one[1] === grade).length]);
    const lost = game.sums.loss / Math.max(1, game.count - (game.pending || 0));
    this.rows = new Map();
    const rows = this.losses.map(at => {
      const grade = gradeOf(game, at);
      const link = el('a', {href: this.options.link ? this.options.link(this.numberOf(at)) : '#', onclick: event => {
        event.preventDefault();
        this.go(at);
      }}, count(this.numberOf(at)));
      this.rows.set(at, link);
      const better = this.best ? ` → ${MOVE_NAMES[this.best[at]] || '–'}` : '';
      return [link, lossOf(game, at), (MOVE_NAMES[game.moves[at]] || '?') + better,
        ...(isGraded(game) ? [grade ? el(`span.grade.${grade}`, null, grade) : ''] : [])];
    });
    fill(this.list, !isGraded(game) ? null : el('p.grades', {title: gradesTold(game)},
      counts.map(([grade, found]) => el(`span.grade.${grade}`, null, counted(found, grade)))),
    rows.length ? table(`The largest losses${pointsOf(game)}; ${valued(lost, unit)} per move on average`,
      ['move', '>loss', this.best ? 'made → best' : 'made', ...(isGraded(game) ? ['grade'] : [])], rows)
      : el('p.soft', null, 'No move has a loss.'));
    this.scroller = this.list.querySelector('.wide');
  }

  buildAccount() {
    const {game} = this;
    fill(this.account);
    if (!game.loss) return;
    const unit = game.judge.unit;
    const {loss, luck} = game.sums;
    const gained = unit === 'points' ? game.scores[game.count] : 0;
    const [first, last] = [game.state[0], game.state[game.count]];
    const rest = gained + last - first - luck + loss;
    fill(this.account, el('details.card', null, el('summary', null, `Account of the game${pointsOf(game)}`), facts([
      [unit === 'points' ? 'value of the first board' : `P(${game.judge.tile}) of the first board`,
          valued(first, unit)], ['+ luck of the spawns', valued(luck, unit)],
      ['− loss of the moves', valued(loss, unit)],
          ['+ error of the judge: changes of its values one move later', valued(rest, unit)],
      [unit === 'points' ? '= score and value of the last board' : '= at the end', valued(gained + last, unit)]]),
    el('p.soft', null, judgeTold(game), ' ', gradesTold(game))));
  }

  go(at) {
    if (this.puzzle !== null) return; // the next boards would show the answer
    const to = Math.max(0, Math.min(this.game.count, at));
    const move = to === this.at + 1 && this.speed <= 10 ? this.game.moves[this.at] : -1;
    this.at = to;
    this.render(move);
  }

  paint(move) {
    const {game, at} = this;
    const asks = this.puzzle !== null;
    const spawned = at > 0 ? spawnAfter(game, at - 1) : null;
    this.tiles.show(game.boards, 16 * at, move, spawned ? spawned[0] : -1);
    this.tiles.point(at < game.count && !asks ? game.moves[at] : -1,
      this.best && at < game.count && !asks ? this.best[at] : -1);
    this.slider.value = at;
    this.curves.show(at);
    const score = game.boards && game.steps ? ` · score ${count(game.scores[at])}` : '';
    setText(this.where, `move ${count(this.numberOf(at))} of ${count(this.numberOf(game.count))}${score}`);
    setText(this.made, asks ? 'Your move' : this.wordsOf(at));
    this.paintValues();
    this.paintList();
    if (this.options.onstep) this.options.onstep(this.numberOf(at));
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      this.slider.setAttribute('aria-valuetext', `move ${this.numberOf(this.at)}`);
      this.tiles.speak();
    }, 200);
  }

  paintList() {
    for (const one of this.jumpers) one.show();
    const link = this.rows && this.rows.get(this.at);
    if (link === this.current) return;
    if (this.current) this.current.removeAttribute('aria-current');
    this.current = link;
    if (!link) return;
    link.setAttribute('aria-current', 'true');
    const [row, box] = [link.closest('tr').getBoundingClientRect(), this.scroller.getBoundingClientRect()];
    if (row.top < box.top || row.bottom > box.bottom) this.scroller.scrollTop += row.top - (box.top + box.bottom) / 2;
  }

  wordsOf(at) {
    const {game} = this;
    if (at === game.count) return 'the last board';
    const move = game.moves[at];
    if (move > 3) return 'an unknown move';
    const spawn = spawnAfter(game, at);
    return `${MOVE_SIGNS[move]} ${MOVE_NAMES[move]}`
        + (spawn ? `, then a ${spawn[1]} in row ${(spawn[0] >> 2) + 1}, column ${(spawn[0] & 3) + 1}` : '');
  }

  /** Build the table of the four moves, once for each judge. Later, only its texts and bars change. */
  buildValues() {
    const {game} = this;
    fill(this.values);
    if (!game.loss) return;
    const unit = game.judge.unit;
    const rows = [0, 1, 2, 3].map(() => ({bar: el('span.bar', {'aria-hidden': true}, el('span')),
      ...Object.fromEntries(['value', 'worse', 'note'].map(name => [name, el('span')]))}));
    this.lossCell = el('span');
    this.luckCell = el('span');
    const caption = (unit === 'points' ? `Values of the moves${pointsOf(game)}` : `P(${game.judge.tile}) after each move`)
      + (this.options.suffix || '');
    const cells = rows.map((row, move) => [`${MOVE_SIGNS[move]} ${MOVE_NAMES[move]}`,
      el('span.valued', null, row.bar, row.value), row.worse, row.note]);
    fill(this.values, table(caption, ['move', '>value', '>loss', 'note'], cells),
    facts([[game.reach ? 'the move loses' : 'loss of the move', this.lossCell], ['luck of the spawn', this.luckCell]]));
    this.valueRows = rows;
  }

  paintValues() {
    const {game, at} = this;
    if (!game.loss) return;
    const unit = game.judge.unit;
    const ended = at === game.count;
    const grade = ended ? '' : gradeOf(game, at);
    this.lossCell.className = grade ? `grade ${grade}` : '';
    setText(this.lossCell, ended ? '–' : costOf(game, at) + (grade && `, ${grade}`));
    setText(this.luckCell, ended ? '–' : valued(game.luck[at], unit));
    // In a file, a game has values only where the move costs something.
    const isKnown = ended || [0, 1, 2, 3].some(move => game.values[4 * at + move] >= -Infinity);
    this.values.firstChild.style.visibility = isKnown ? '' : 'hidden';
    // A bar is empty if the loss is a blunder.
    const [[, least]] = game.grades;
    const best = ended || this.best[at] < 0 ? NaN : game.values[4 * at + this.best[at]];
    this.valueRows.forEach((row, move) => {
      const found = ended ? NaN : game.values[4 * at + move];
      const [isBest, isMade] = [!ended && this.best[at] === move, !ended && game.moves[at] === move];
      const worse = best - found;
      setText(row.value, valued(found, unit));
      setText(row.worse, worse > 0 ? valued(worse, unit) : '');
      row.bar.className = isBest ? 'bar best' : isMade ? 'bar made' : 'bar';
      const share = 1 - worse / (least * (unit === 'points' ? best : 1));
      row.bar.firstChild.style.transform = `scaleX(${found >= -Infinity ? Math.max(0.02, share) : 0})`;
      setText(row.note, [isMade ? 'made' : '', isBest ? 'best' : '',
        !ended && this.other && this.other.best[at] === move ? "other's best" : ''].filter(Boolean).join(', '));
    });
  }

  /** The move that was made and a better one; null if there is none. */
  inQuestion() {
    const [made, best] = [this.game.moves[this.at], this.best ? this.best[this.at] : -1];
    return this.at < this.game.count && best >= 0 && made < 4 && best !== made ? [made, best] : null;
  }

  jump(positions, way) {
    if (this.tally && positions === this.mistakes) return this.retry(way);
    const found = way > 0 ? positions.find(one => one > this.at) : positions.findLast(one => one < this.at);
    return this.go(found ?? this.at);
  }

  /** Let the user choose a move at a mistake. The answer is hidden: values, arrows, curves and later boards. */
  retry(way = 1) {
    const {mistakes} = this;
    if (!this.best || !mistakes.length) return;
    this.stop();
    const isThere = !this.tally && mistakes.includes(this.at);
    const after = way > 0 ? mistakes.find(one => one > this.at) : mistakes.findLast(one => one < this.at);
    const at = isThere ? this.at : after ?? mistakes.at(way > 0 ? 0 : -1);
    this.tally = this.tally || [0, 0];
    this.puzzle = null;
    this.go(at);
    this.puzzle = at;
    setText(this.notice, 'The player made a mistake here. Which move is better?');
    this.paintRetry();
    this.boardSide.scrollIntoView({block: 'nearest'});
  }

  /** Take the user's move, or no move (-1), and compare it with the player's move and the judge's best move. */
  guess(move) {
    const {game, puzzle: at} = this;
    const [best, made, {unit}] = [this.best[at], game.moves[at], game.judge];
    const named = one => `${MOVE_SIGNS[one]} ${MOVE_NAMES[one]}`;
    if (move >= 0) {
      const after = new Uint8Array(16);
      slide(game.boards, 16 * at, move, after, 0);
      if (after.every((exp, cell) => exp === game.boards[16 * at + cell])) {
        setText(this.notice, `${named(move)} moves no tile. Choose another move.`);
        return;
      }
      this.tally = [this.tally[0] + (move === best), this.tally[1] + 1];
    }
    const told = one => one === best ? 'the best move' :
      `loss ${valued(game.values[4 * at + best] - game.values[4 * at + one], unit)}`;
    setText(this.notice, [move >= 0 ? `You: ${named(move)}, ${told(move)}` : '',
      `Player: ${named(made)}, ${told(made)}`, `Judge: ${named(best)}`,
      this.tally[1] ? `your best moves: ${this.tally.join(' of ')}` : ''].filter(Boolean).join(' · '));
    this.puzzle = null;
    this.paintRetry();
  }

  endRetry() {
    [this.tally, this.puzzle] = [null, null];
    setText(this.notice, '');
    this.paintRetry();
  }

  paintRetry() {
    const asks = this.puzzle !== null;
    this.node.classList.toggle('trying', Boolean(this.tally));
    this.node.classList.toggle('asking', asks);
    this.trials.hidden = !this.tally;
    for (const one of this.guesses) one.hidden = !asks;
    setText(this.forth, asks ? 'Answer' : 'Try the next');
    if (this.tally) this.forth.focus({preventScroll: true});
    this.paint(-1);
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

  /** Act on a key; return whether it has a meaning. */
  key(event) {
    if (this.tally && event.key === 'Escape') {
      this.endRetry();
      return true;
    }
    const move = ARROW_KEYS.indexOf(event.key);
    if (this.puzzle !== null && !'npr'.includes(event.key)) {
      if (move >= 0) this.guess(move);
      return move >= 0;
    }
    const step = event.shiftKey ? 10 : 1;
    const acts = {
      ArrowLeft: () => this.go(this.at - step), ArrowRight: () => this.go(this.at + step),
      ArrowUp: () => this.go(this.at - step), ArrowDown: () => this.go(this.at + step),
      PageUp: () => this.go(this.at - 100), PageDown: () => this.go(this.at + 100),
      Home: () => this.go(0), End: () => this.go(this.game.count),
      n: () => this.jump(this.mistakes, 1), p: () => this.jump(this.mistakes, -1),
      N: () => this.go(this.losses[0] ?? this.at),
      r: () => this.retry(),
      '+': () => this.curves.zoomBy(0.5), '-': () => this.curves.zoomBy(2),
      ']': () => this.jump(this.disagreements(), 1),
      '[': () => this.jump(this.disagreements(), -1),
      ' ': () => this.playButton.click(),
    };
    const act = acts[event.key];
    if (!act) return false;
    act();
    return true;
  }
}

/** The keys of a replay, for the help. A replay on a terminal has the same keys. */
export const REPLAY_KEYS = [
  ['← →', 'one move back, forward (with Shift: 10)'], ['Page Up, Page Down', '100 moves back, forward'],
  ['Home, End', 'the first, the last board'], ['Space', 'play, pause'],
  ['p n', 'the previous, the next mistake or blunder'], ['N', 'the largest loss'],
  ['[ ]', 'the previous, the next move that differs from the judge\'s'],
  ['r', 'try the mistakes yourself; the arrow keys move, Esc ends it'],
  ['+ −', 'zoom the curves in, out around the move'],
  ['wheel', 'over the curves, or with Shift over the board: back, forward'],
];
