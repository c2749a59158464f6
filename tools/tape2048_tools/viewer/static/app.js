// The pages of the viewer.

import {ask, askGame, askJson, keepKey, refusalNode} from './api.js';
import {boardPage} from './boardpage.js';
import {criticPage} from './criticpage.js';
import {count, el, fill, message} from './dom.js';
import {gamesPage, sessionsPage} from './lists.js';
import {livePage} from './live.js';
import {overviewPage} from './overview.js';
import {Replay, replayPage} from './replay.js';
import {Rollouts} from './rollouts.js';
import {installPage} from './shell.js';

const PAGES = {overview: overviewPage, sessions: sessionsPage, games: gamesPage, board: boardPage, live: livePage,
    critic: criticPage};
const JUDGED = new Set(['board', 'critic']);

const about = {};
const shell = installPage(
  {overview: 'Overview', sessions: 'Sessions', games: 'Games', board: 'Board', live: 'Live', critic: 'Critic'},
      showPage);

async function judges() {
  if (!about.judges) about.judges = await askJson('judges');
}

async function showPage(path, given, main) {
  const moment = /^([0-9a-f]{10})\/(\d+)(?:\/(\d+))?$/.exec(path);
  try {
    if (!about.version) Object.assign(about, await askJson('about'));
    if (moment) return await gamePage(main, moment[1], moment[2], Number(moment[3] || 0), given);
    if (!PAGES[path]) return fill(main, el('h1', null, 'Not found'), message('No page has this link.'));
    if (JUDGED.has(path) && !about.judges) {
      fill(main, message('Loading the judges…'));
      await judges();
    }
    return await PAGES[path](main, given, shell, about);
  } catch (error) {
    return fill(main, el('h1', null, 'Not shown'), refusalNode(error));
  }
}

async function gamePage(main, session, run, step, given) {
  fill(main, message('Reading the game…'));
  const judge = given.judge || '0';
  const [besideSession, besideRun] = (given.beside || '').split('/');
  const [packed, twins, beside] = await Promise.all([askGame('replay', {session, run, judge, quick: '1'}),
    askJson('twins', {session, run}),
    given.beside ? askGame('replay', {session: besideSession, run: besideRun, judge, quick: '1'}).catch(error => error)
      : null,
    judges()]);
  const refused = beside instanceof Error;
  const changed = change => shell.go(`${session}/${run}/${shown.numberOf(shown.at)}`, {...given, ...change});
  const link = number => shell.linkOf(`${session}/${run}/${number}`, given);
  const other = beside && !refused ? new Replay(beside, {suffix: ', of the other game',
    judged: number => askGame('replay', {session: besideSession, run: besideRun, judge: number})}) : null;
  const common = el('p.soft');
  const rollouts = new Rollouts((more, moves) => askJson('rollouts', {session, more, moves, board: shown.hex()}),
    () => shown && shown.inQuestion());
  let shown = null;
  shown = new Replay(packed, {
    link, judge: Number(judge), judges: about.judges.judges, players: about.judges.players, other: other && other.game,
    judged: number => askGame('replay', {session, run, judge: number}),
    onjudge: number => {
      given.judge = number ? String(number) : '';
      shell.keepLink(link(shown.numberOf(shown.at)));
      if (other) other.judgeBy(number);
    },
    save: async (by, move) => (await ask('game', {session, run, judge: by, move})).blob(),
    choices: player => askJson('choices', {session, run, player}),
    rollouts: rollouts.node,
    onstep: number => {
      rollouts.clear();
      shell.keepLink(link(number));
      if (other) other.go(other.positionOf(number));
    },
    beside: other && el('section.beside', {'aria-label': 'The other game'}, other.boardSide),
    more: other && el('div.more', null, el('h2', null, `By ${beside.player} · score ${count(beside.score)}`),
      el('p.soft', null, `Game ${beside.run} of ${beside.name}`), common, other.where, other.made, other.values),
  });
  if (other) common.append(shown.common());
  replayPage(main, shell, shown, packed, step, refused ? refusalNode(beside) : null,
    besideChoice(given, `${session}/${run}`, twins.rows, changed));
  if (packed.pending) shown.judgeBy(Number(judge));
  if (other && beside.pending) other.judgeBy(Number(judge));
}

/** The choice of a second game: a game of the same seed, a game from the list, or any game by its link. */
function besideChoice(given, own, twins, changed) {
  const named = el('input', {autocomplete: 'off', spellcheck: 'false', placeholder: 'link of a game',
    oninput: () => named.setCustomValidity('')});
  const values = twins.map(one => `${one.session}/${one.run}`);
  const twin = twins.length ? el('label', null, 'Game with the same seed ',
    el('select', {onchange: event => changed({beside: event.target.value})}, el('option', {value: ''}, 'none'),
      twins.map((one, i) => el('option', {value: values[i], selected: values[i] === given.beside},
        `${one.player}, ${one.name}, score ${count(one.score)}`)))) : null;
  const take = event => {
    event.preventDefault();
    const found = /([0-9a-f]{10})\/(\d+)/.exec(named.value);
    named.setCustomValidity(found ? '' : 'Enter the link of a game, which holds its session and its number, such as #0123456789/12.');
    if (found) changed({beside: `${found[1]}/${found[2]}`});
    else named.reportValidity();
  };
  return el('details.card', {open: Boolean(given.beside)}, el('summary', null, 'Compare with another game'),
    el('form.form', {onsubmit: take}, twin, el('label.long', null, 'Any other game', named),
      el('button', {type: 'submit'}, 'Show'), el('a', {href: `#games?beside=${own}`}, 'Choose from the list'),
      given.beside ? el('button', {type: 'button', onclick: () => changed({beside: ''})}, 'Show one game only') : null));
}

keepKey();
