// A board to paste or edit: the values of its moves, the tree one level deep, the critic, and play from here.

import {askGame, askJson, refusalNode} from './api.js';
import {count, el, facts, fill, message, percent, playerChoice, table, valued} from './dom.js';
import {judgeTold, pointsOf, Replay} from './replay.js';
import {Rollouts} from './rollouts.js';
import {MOVE_NAMES, MOVE_SIGNS} from './rules.js';
import {smallBoard} from './tiles.js';

const EXAMPLE = '0 2 0 0 / 0 4 2 0 / 8 16 4 2 / 1024 512 256 128';

export function boardPage(main, given, shell, about) {
  const body = el('div');
  const played = el('div');
  const opinion = el('div');
  const reading = el('p.soft', {role: 'status'});
  const text = el('input', {name: 'board', value: given.board || EXAMPLE, autocomplete: 'off', spellcheck: 'false',
      'aria-describedby': 'spelling'});
  const judges = about.judges.judges;
  const judge = el('select', {name: 'judge'},
      judges.map(one => el('option', {value: one.number, selected: String(one.number) === given.judge},
        one.own ? 'the default network' : one.name)));
  const cells = Array.from({length: 16},
      (_, cell) => el('button', {type: 'button', onclick: event => turn(cell, event.shiftKey ? 15 : 1),
    onkeydown: event => editKey(event, cell), oncontextmenu: event => { event.preventDefault(); turn(cell, 15); }}));
  const edit = el('div.edit', {role: 'group', 'aria-label': 'Board to edit'}, cells);
  let exps = new Array(16).fill(0);

  const paintEdit = () => cells.forEach((node, cell) => {
    node.className = `t${exps[cell]}`;
    node.textContent = exps[cell] ? 2 ** exps[cell] : '';
    node.setAttribute('aria-label',
        `row ${(cell >> 2) + 1}, column ${(cell & 3) + 1}: ${exps[cell] ? 2 ** exps[cell] : 'empty'}`);
  });
  const hex = () => exps.map(exp => exp.toString(16)).join('');
  const turn = (cell, by) => {
    exps[cell] = (exps[cell] + by) % 16;
    paintEdit();
    text.value = hex();
    load();
  };
  const editKey = (event, cell) => {
    const way = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -4, ArrowDown: 4}[event.key];
    if (way && cell + way >= 0 && cell + way < 16) cells[cell + way].focus();
    else if (event.key === '+' || event.key === '-') turn(cell, event.key === '+' ? 1 : 15);
    else if (event.key === 'Delete' || event.key === 'Backspace') turn(cell, 16 - exps[cell]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  let asked = 0;
  const load = async () => {
    const mine = ++asked;
    let document;
    try {
      document = await askJson('board', {board: text.value, judge: judge.value});
    } catch (error) {
      if (mine === asked) fill(body, refusalNode(error));
      return;
    }
    if (mine !== asked || !body.isConnected) return;
    exps = document.exps;
    paintEdit();
    fill(reading, `Read as ${document.reading}. `, document.others.map(one => el('button', {type: 'button',
      onclick: () => { text.value = one.board; load(); }}, `Read as ${one.reading}`)));
    shell.keepLink(shell.linkOf('board', {board: document.board, judge: judge.value}));
    const {thresholds} = about.judges.critic;
    const its = about.judges.critic.players.join(', ') || 'its player';
    fill(opinion, document.critic ? [el('h2', null, 'The critic'),
      facts(thresholds.map((tile, i) => [`reaches ${tile}`, percent(document.critic[i])])),
      el('p.soft', null, `If ${its}, the player of its training, continues the game.`)] : null);
    fill(body, answer(document, judges[Number(judge.value)]));
    rollouts.clear();
  };
  const playOn = async () => {
    fill(played, message('Playing on…'));
    try {
      const packed = await askGame('play-on', {board: text.value, judge: judge.value, seed: seed.value,
        player: player.value(), moves: moves.value});
      if (!played.isConnected) return;
      const replay = new Replay(packed);
      shell.hold(replay);
      fill(played, el('h2', null, `Played on by ${packed.player}`), packed.notes.map(note => el('p.soft', null, note)),
        replay.node);
      replay.node.scrollIntoView({block: 'start'});
    } catch (error) {
      fill(played, refusalNode(error));
    }
  };
  const player = playerChoice(about.judges.players, 'Played by', [['', "the judge's best moves"]],
    () => rollouts.clear());
  const rollouts = new Rollouts(more => askJson('rollouts', {board: hex(), judge: judge.value, player: player.value(),
    more}));
  const seed = el('input', {type: 'number', min: 0, max: 999999, value: 1});
  const moves = el('input', {type: 'number', min: 1, max: 20000, value: 1000});
  fill(main, el('h1', null, 'Board'), el('div.stage', null, edit, el('div', null,
    el('form.form', {onsubmit: event => { event.preventDefault(); load(); }},
      el('label.long', null, 'Board', text), el('button.main', {type: 'submit'}, 'Show'),
      el('p.soft', {id: 'spelling'}, '16 tiles or exponents row by row, or 16 hexadecimal digits. Or edit the board: '
        + 'click or press + for a larger tile, − for a smaller tile, Delete for an empty cell.'), reading,
      el('label', null, 'Judged by', judge)), opinion)), body,
  el('section', null, el('h2', null, 'Play on from here'),
    el('form.form', {onsubmit: event => { event.preventDefault(); playOn(); }}, player.nodes,
      el('label', null, 'Most moves', moves), el('label', null, 'Seed of the spawns', seed),
      el('button', {type: 'submit'}, 'Play on')), rollouts.node), played);
  judge.addEventListener('change', load);
  return load();
}

function answer(document, judge) {
  const {unit} = judge;
  if (!document.options.length) return el('p.message', null, 'No move is legal: the game is over.');
  return el('section', null, el('h2', null, 'Moves and their spawns'),
      el('p.soft', null, `${judgeTold(document)}${document.uncalibrated ? ` Values are${pointsOf(document).replace(',', '')}.` : ''}`),
      el('div.options', null, document.options.map(option => {
    const spread = option.spawns.length ? spawnSpread(option.spawns) : null;
    return el(option.value === document.best ? 'div.option.best' : 'div.option', null,
      el('h3', null, el('span', null,
          `${MOVE_SIGNS[option.move]} ${MOVE_NAMES[option.move]}${option.value === document.best ? ' (best)' : ''}`),
          el('span', null, valued(option.value, unit))),
      smallBoard(option.exps, `Board after ${MOVE_NAMES[option.move]}`),
      el('p.soft', null, `${count(option.reward)} points from merges` + (spread ? `. Value after the spawn: ${valued(spread.worst.value, unit)} to ${
        valued(spread.best.value, unit)}` : ', and the game ends')),
      spread && el('details', null, el('summary', null, `${option.spawns.length} spawns`),
          table(`Spawns after ${MOVE_NAMES[option.move]}`, ['spawn', '>chance', '>value'],
        option.spawns.map(one => [`${one.tile} in row ${(one.cell >> 2) + 1}, column ${(one.cell & 3) + 1}`,
            percent(one.p), valued(one.value, unit)]))));
  })));
}

function spawnSpread(spawns) {
  const sorted = [...spawns].sort((a, b) => a.value - b.value);
  return {worst: sorted[0], best: sorted[sorted.length - 1]};
}
