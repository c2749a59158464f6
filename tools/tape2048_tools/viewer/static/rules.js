// The rules of 2048 on exponents, for the boards of a packed game and for the movement of each tile.

export const MOVE_NAMES = ['up', 'down', 'left', 'right'];
export const MOVE_SIGNS = ['↑', '↓', '←', '→'];

// For each move, the cells of its four lines, each starting at the wall.
const LINES = [0, 1, 2, 3].map(move => Uint8Array.from({length: 16}, (_, i) => {
  const [line, at] = [i >> 2, i & 3];
  return [at * 4 + line, (3 - at) * 4 + line, line * 4 + at, line * 4 + 3 - at][move];
}));

/** Slide the 16 exponents that start at `at` into `out`, starting at `to`; return the score of the merges.
 * The way of each tile is added to `ways`, as [from, to, merged]. */
export function slide(exps, at, move, out, to, ways) {
  const cells = LINES[move];
  let score = 0;
  for (let first = 0; first < 16; first += 4) {
    let place = first;
    let waiting = 0;
    for (let i = first; i < first + 4; i++) {
      const exp = exps[at + cells[i]];
      if (!exp) continue;
      const merged = exp === waiting;
      if (!merged) place += 1;
      out[to + cells[place - 1]] = exp + merged;
      if (merged) score += 2 << exp;
      waiting = merged ? 0 : exp;
      if (ways) ways.push([cells[i], cells[place - 1], merged]);
    }
    while (place < first + 4) out[to + cells[place++]] = 0;
  }
  return score;
}

/** Make the boards, moves, spawns and scores of a packed game. */
export function expandGame(game) {
  const boards = game.boards || new Uint8Array(16 * (game.count + 1));
  const moves = game.moves || game.steps.map(byte => byte & 3);
  const scores = new Float64Array(game.count + 1);
  const highest = new Uint8Array(game.count + 1);
  const empty = new Uint8Array(game.count + 1);
  const scratch = new Uint8Array(16);
  if (game.steps) boards.set(game.first);
  for (let i = 0; i <= game.count; i++) {
    for (let cell = 16 * i; cell < 16 * i + 16; cell++) {
      if (boards[cell] > highest[i]) highest[i] = boards[cell];
      if (!boards[cell]) empty[i] += 1;
    }
    if (i === game.count || moves[i] > 3) continue;
    scores[i + 1] = scores[i] + (game.steps ? slide(boards, 16 * i, moves[i], boards, 16 * i + 16)
        : slide(boards, 16 * i, moves[i], scratch, 0));
    // No tile is spawned after a 65536.
    if (game.steps && game.steps[i] < 128) {
      boards[16 * (i + 1) + (game.steps[i] >> 2 & 15)] = game.steps[i] >> 6 & 1 ? 2 : 1;
    }
  }
  return {...game, boards, moves, scores, highest, empty};
}

/** The board at a position as rows of tiles, for screen readers. */
export function spokenBoard(exps, at) {
  const rows = [0, 4, 8, 12].map(row => [0, 1, 2, 3].map(i => {
    const exp = exps[at + row + i];
    return exp ? 2 ** exp : 'empty';
  }).join(' '));
  return `Board, row by row: ${rows.join('; ')}`;
}

/** The cell that got a tile after a move: [cell, tile], or null. */
export function spawnAfter(game, step) {
  if (step >= game.count || game.moves[step] > 3 || game.steps && game.steps[step] >= 128) return null;
  if (game.steps) return [game.steps[step] >> 2 & 15, game.steps[step] >> 6 & 1 ? 4 : 2];
  const after = new Uint8Array(16);
  slide(game.boards, 16 * step, game.moves[step], after, 0);
  for (let cell = 0; cell < 16; cell++) {
    const exp = game.boards[16 * (step + 1) + cell];
    if (exp !== after[cell]) return [cell, 2 ** exp];
  }
  return null;
}
