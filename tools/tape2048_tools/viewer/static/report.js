// The pages of a report, from what is written in its file.

import {inlineGame, refusalNode} from './api.js';
import {examinationBody} from './criticpage.js';
import {count, el, fill, message, moment, table} from './dom.js';
import {overviewBody} from './overview.js';
import {describeGame, Replay} from './replay.js';
import {installPage} from './shell.js';

const data = JSON.parse(document.getElementById('data').textContent);
const shell = installPage(data.examination ? {critic: 'Critic'} : {overview: 'Overview', games: 'Games'}, show);

function overviewPart() {
  return [el('h1', null, data.title), el('p.lead', null,
      `Report of ${moment(data.made)} UTC by tape2048 ${data.version}`),
    overviewBody(data.overview, null, data.samples.length ? async () => data.samples : null)];
}

function gamesPart() {
  const kinds = [...new Set(data.games.map(one => one.why))];
  return [el('h1', null, 'Games'), el('p.lead', null,
    `${count(data.games.length)} games to replay: the best, the worst, the longest, and those that lost most on each `
      + 'move, of those that were judged.'),
    kinds.map(kind => el('section', null, table(`The ${kind}`,
        ['game', '>score', '>highest tile', '>moves', 'session', 'player'],
      data.games.filter(one => one.why === kind).map(one => [el('a', {href: `#${one.key}/0`}, `game ${one.run}`),
          count(one.score), String(one.tile), count(one.steps), one.name, one.player]))))];
}

async function gamePart(key, step, given, main) {
  const listed = data.games.find(one => one.key === key);
  if (!listed) {
    fill(main, el('h1', null, 'Not found'), message('This report does not hold the game of the link.'));
    return;
  }
  const packed = await inlineGame(data.packs[key]);
  const replay = new Replay(packed, {link: number => `#${key}/${number}`,
      onstep: number => shell.keepLink(`#${key}/${number}`)});
  fill(main, el('h1', null, `Game ${listed.run}`),
      el('p.lead', null,
      describeGame(packed)),
    packed.strange ? message(packed.strange) : null, packed.notes.map(note => el('p.soft', null, note)), replay.node);
  shell.hold(replay);
  replay.go(replay.positionOf(step));
}

async function show(path, given, main) {
  const moment = /^([0-9a-f]{10}\/\d+)(?:\/(\d+))?$/.exec(path);
  try {
    if (data.examination) fill(main, el('h1', null, 'Critic'),
        el('p.lead', null, 'From a position, will this game reach the tile?'),
        examinationBody(data.examination, data.curves));
    else if (moment) await gamePart(moment[1], Number(moment[2] || 0), given, main);
    else if (path === 'games') fill(main, gamesPart());
    else fill(main, overviewPart());
  } catch (error) {
    fill(main, el('h1', null, 'Not shown'), refusalNode(error));
  }
}
