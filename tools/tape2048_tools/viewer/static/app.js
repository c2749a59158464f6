// The pages of the viewer.

import {askGame, askJson, refusalNode} from './api.js';
import {boardPage} from './boardpage.js';
import {criticPage} from './criticpage.js';
import {count, el, fill, message} from './dom.js';
import {gamesPage, sessionsPage} from './lists.js';
import {livePage} from './live.js';
import {overviewPage} from './overview.js';
import {describeGame, Replay} from './replay.js';
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
    if (moment) return await replayPage(main, moment[1], moment[2], Number(moment[3] || 0), given);
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

async function replayPage(main, session, run, step, given) {
  fill(main, message('Reading the game…'));
  const judge = given.judge || '0';
  const [besideSession, besideRun] = (given.beside || '').split('/');
  const [packed, twins, beside] = await Promise.all([askGame('replay', {session, run, judge}),
    askJson('twins', {session, run}),
    given.beside ? askGame('replay', {session: besideSession, run: besideRun, judge}).catch(error => error) : null,
    judges()]);
  const refused = beside instanceof Error;
  const changed = change => shell.go(`${session}/${run}/${shown.numberOf(shown.at)}`, {...given, ...change});
  const link = number => shell.linkOf(`${session}/${run}/${number}`, given);
  const other = beside && !refused ? new Replay(beside, {suffix: ', of the game beside'}) : null;
  const shown = new Replay(packed, {
    link, judges: about.judges.judges, players: about.judges.players, other: other && other.game,
    onjudge: number => changed({judge: number ? String(number) : ''}),
    second: number => askGame('replay', {session, run, judge: number}),
    choices: player => askJson('choices', {session, run, player}),
    onstep: number => {
      shell.keepLink(link(number));
      if (other) other.go(other.positionOf(number));
    },
  });
  fill(main, el('h1', null, `Game ${run}`), el('p.lead', null, describeGame(packed)),
    packed.strange ? message(packed.strange) : null, packed.notes.map(note => el('p.soft', null, note)),
    besideChoice(given, `${session}/${run}`, twins.rows, changed),
    other ? el('div.pair', null,
      el('section', {'aria-label': 'The game'}, el('h2', null, `By ${packed.player} · score ${count(packed.score)}`),
        el('p.soft', null, shown.common()), shown.stage),
      el('section', {'aria-label': 'The game beside'},
        el('h2', null, `By ${beside.player} · score ${count(beside.score)}`),
        el('p.soft', null, `Game ${beside.run} of ${beside.name}`),
        other.stage, beside.strange && !packed.strange ? el('p.soft', null, beside.strange) : null)) : null,
    refused ? refusalNode(beside) : null, shown.node);
  shell.hold(shown);
  shown.go(shown.positionOf(step));
}

/** The choice of a second game: one of the same seed, one from the list, or any one by its link. */
function besideChoice(given, own, twins, changed) {
  const named = el('input', {autocomplete: 'off', spellcheck: 'false', placeholder: 'link of a game',
    oninput: () => named.setCustomValidity('')});
  const values = twins.map(one => `${one.session}/${one.run}`);
  const twin = twins.length ? el('label', null, 'Beside it, the game of the same seed ',
    el('select', {onchange: event => changed({beside: event.target.value})}, el('option', {value: ''}, 'none'),
      twins.map((one, i) => el('option', {value: values[i], selected: values[i] === given.beside},
        `${one.player}, ${one.name}, score ${count(one.score)}`)))) : null;
  const take = event => {
    event.preventDefault();
    const found = /([0-9a-f]{10})\/(\d+)/.exec(named.value);
    named.setCustomValidity(found ? '' : 'The link of a game holds its session and its number: #0123456789/12.');
    if (found) changed({beside: `${found[1]}/${found[2]}`});
    else named.reportValidity();
  };
  return el('details.card', {open: Boolean(given.beside)}, el('summary', null, 'A game beside it'),
    el('form.form', {onsubmit: take}, twin, el('label.long', null, 'Any other one', named),
      el('button', {type: 'submit'}, 'Show'), el('a', {href: `#games?beside=${own}`}, 'Choose from the list'),
      given.beside ? el('button', {type: 'button', onclick: () => changed({beside: ''})}, 'Take it away') : null));
}

if (location.search) history.replaceState(null, '', location.pathname + location.hash); // the token is a cookie now
