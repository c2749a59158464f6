// A game in one file: the replay of the viewer, without a server.

import {inlineGame, refusalNode} from './api.js';
import {el, fill} from './dom.js';
import {Replay, replayPage} from './replay.js';
import {installPage} from './shell.js';

const data = JSON.parse(document.getElementById('data').textContent);
const shell = installPage({}, async (path, given, main) => {
  const named = /^move=(\d+)$/.exec(path);
  const link = number => `#move=${number}`;
  try {
    const packed = await inlineGame(data.game);
    const shown = new Replay(packed, {link, onstep: number => shell.keepLink(link(number))});
    replayPage(main, shell, shown, packed, named ? Number(named[1]) : data.move, null,
      el('p.soft', null, `Saved by tape2048 ${data.version}. Add #move=NUMBER to the address to open a move.`));
  } catch (error) {
    fill(main, refusalNode(error));
  }
});
