// The pages of a report, from the data in its file.

import {fetchedGame, inlineGame, refusalNode} from './api.js';
import {examinationBody} from './criticpage.js';
import {count, el, fill, message, moment} from './dom.js';
import {gallery, judgedBy} from './lists.js';
import {overviewBody} from './overview.js';
import {Replay, replayPage} from './replay.js';
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
  if (!kinds.length) return [el('h1', null, 'Games'), message('This report holds no games.')];
  return [el('h1', null, 'Games'), el('p.lead', null,
    `${count(data.games.length)} games to replay: the ${kinds.join(', the ')}.`), judgedBy(data.judged),
    kinds.map(kind => {
      const rows = data.games.filter(one => one.why === kind);
      return [el('h2', null, `The ${kind}`), gallery(rows, rows.map(one => one.card), one => `#${one.key}/0`)];
    })];
}

async function gamePart(key, step, given, main) {
  const listed = data.games.find(one => one.key === key);
  if (!listed) {
    fill(main, el('h1', null, 'Not found'), message('This report does not hold the game of the link.'));
    return;
  }
  const packed = await (data.packs[key] ? inlineGame(data.packs[key]) : fetchedGame(`games/${key.replace('/', '-')}`));
  const replay = new Replay(packed, {link: number => `#${key}/${number}`,
      onstep: number => shell.keepLink(`#${key}/${number}`)});
  replayPage(main, shell, replay, packed, step);
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
