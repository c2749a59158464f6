// The rules of 2048 on exponents, for the boards of a packed game and for the way of each tile.

export const MOVE_NAMES = ['up', 'down', 'left', 'right'];
export const MOVE_SIGNS = ['↑', '↓', '←', '→'];

// For each move the four lines of cells, each from the wall on.
const LINES = [0, 1, 2, 3].map(move => [0, 1, 2, 3].map(line => [0, 1, 2, 3].map(at => {
  if (move === 0) return at * 4 + line;
  if (move === 1) return (3 - at) * 4 + line;
  if (move === 2) return line * 4 + at;
  return line * 4 + 3 - at;
})));

/**
 * Slide the 16 exponents from `at` on into `out` from `to` on; return the score of the merges.
 * Each tile's way goes into `ways`, as [from, to, merged].
 */
export function slide(exps, at, move, out, to, ways) {
  let score = 0;
  for (const line of LINES[move]) {
    let place = 0;
    let waiting = 0;
    for (const cell of line) {
      const exp = exps[at + cell];
      if (!exp) continue;
      if (waiting === exp && exp < 15) {
        out[to + line[place - 1]] = exp + 1;
        score += 2 ** (exp + 1);
        waiting = 0;
        if (ways) ways.push([cell, line[place - 1], true]);
      } else {
        out[to + line[place]] = exp;
        waiting = exp;
        if (ways) ways.push([cell, line[place], false]);
        place += 1;
      }
    }
    // Cells behind the last tile are empty.
    for (let i = place; i < 4; i++) out[to + line[i]] = 0;
  }
  return score;
}

/** Make the boards, moves, spawns and scores of a packed game. */
export function expandGame(game) {
  const boards = game.boards || new Uint8Array(16 * (game.count + 1));
  const moves = game.moves || new Uint8Array(game.count);
  const scores = new Float64Array(game.count + 1);
  const scratch = new Uint8Array(16);
  if (game.steps) boards.set(game.first);
  for (let i = 0; i < game.count; i++) {
    const byte = game.steps ? game.steps[i] : 0;
    if (game.steps) moves[i] = byte & 3;
    if (moves[i] > 3) continue;
    scores[i + 1] = scores[i] + slide(boards, 16 * i, moves[i], scratch, 0);
    if (game.steps) {
      boards.set(scratch, 16 * (i + 1));
      boards[16 * (i + 1) + (byte >> 2 & 15)] = byte >> 6 & 1 ? 2 : 1;
    }
  }
  const highest = new Uint8Array(game.count + 1);
  const empty = new Uint8Array(game.count + 1);
  for (let i = 0; i <= game.count; i++) {
    for (let cell = 16 * i; cell < 16 * i + 16; cell++) {
      if (boards[cell] > highest[i]) highest[i] = boards[cell];
      if (!boards[cell]) empty[i] += 1;
    }
  }
  return {...game, boards, moves, scores, highest, empty};
}

/** The board at a position as rows of tiles, for those who do not see it. */
export function spokenBoard(exps, at) {
  const rows = [0, 4, 8, 12].map(row => [0, 1, 2, 3].map(i => {
    const exp = exps[at + row + i];
    return exp ? 2 ** exp : 'empty';
  }).join(' '));
  return `Board, row by row: ${rows.join('; ')}`;
}

/** The cell that got a tile after a move: [cell, tile], or null. */
export function spawnAfter(game, step) {
  if (step >= game.count || game.moves[step] > 3) return null;
  const after = new Uint8Array(16);
  slide(game.boards, 16 * step, game.moves[step], after, 0);
  for (let cell = 0; cell < 16; cell++) {
    const exp = game.boards[16 * (step + 1) + cell];
    if (exp !== after[cell]) return [cell, 2 ** exp];
  }
  return null;
}
