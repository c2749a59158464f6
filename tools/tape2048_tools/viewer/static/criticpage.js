// The evaluation of a critic: how well it ranks and how well it is calibrated, beside the baselines.

import {askJson, refusalNode} from './api.js';
import {count, el, facts, fill, message, percent, table} from './dom.js';
import {figure} from './charts.js';

const METRICS = [['auroc', 'AUROC'], ['auprc', 'AUPRC'], ['brier', 'Brier'],
    ['log_loss', 'log loss'], ['skill', 'skill'], ['ece', 'ECE'], ['gain', "critic's AUROC minus this"]];
const ORACLE_METRICS = [['r2', 'R2'], ['brier', 'Brier'], ['log_loss', 'log loss'], ['bias', 'bias'], ['ece', 'ECE']];

export function criticPage(main, given, shell, about) {
  const {critic} = about.judges;
  const body = el('div', null,
      message('Evaluating the critic on games that it did not learn from. This takes a while.'));
  const numbers = Object.entries(critic.metrics).filter(pair => typeof pair[1] === 'number').slice(0, 6).map(
    ([name, value]) => [name, String(Number(value.toPrecision(4)))]);
  fill(main, el('h1', null, 'Critic'), el('p.lead', null,
      `It was trained on games of ${critic.players.join(', ') || 'unknown players'}.`),
    body, el('section', null, el('h2', null, 'The critic'), facts([['kind', critic.kind],
      ['predicts', critic.thresholds.join(', ')], ['SHA-256', critic.sha256.slice(0, 16)], ['step', count(critic.step)],
      ...numbers])));
  askJson('examination').then(document => body.isConnected && fill(body, examinationBody(document, document.curves)),
      error => fill(body, refusalNode(error)));
}

/** The figures and tables of an evaluation, and the learning curves {train, val, best_step} if they are known. */
export function examinationBody(document, curves) {
  const {evaluation} = document;
  const about = [['critic', document.critic], ['source', document.root], ['part', document.part],
      ['condition', document.where],
    ['games', count(evaluation.runs)], ['rows', `${count(evaluation.rows)} of ${count(evaluation.rows_in_all)}`],
        ['replicates', count(evaluation.replicates)]];
  return [
    el('section', null, summaryTable(evaluation)),
    el('section', null, el('h2', null, 'Evaluated games'), facts(about),
        (document.notes || []).map(note => el('p.soft', null, note))),
    evaluation.thresholds.map(tile => tileParts(evaluation, tile)),
    curves ? learningFigure(curves) : null,
    el('section', null, el('h2', null, 'Stages'), facts(evaluation.stages.map(one => [one.name, one.about]))),
        reading(evaluation)];
}

function rankingPredictors(evaluation) {
  const [own, , ...others] = evaluation.predictors;
  return [own, ...others];
}

/** The critic and the baselines over all rows, by tile; R2 only if rollouts measured the true probabilities. */
function summaryTable(evaluation) {
  const pooled = evaluation.thresholds.map(tile => evaluation.cells.find(one => one.threshold === tile));
  const known = pooled.some(cell => Object.values(cell.scores).some(scores => scores.oracle));
  return table('The critic and the baselines over all rows, with 95% intervals; lower is better for Brier and ECE',
    ['tile', 'predictor', ...(known ? ['>R2 (rollouts)'] : []), '>AUROC', ">critic's AUROC minus this", '>Brier',
      '>calibration error (ECE)'],
    pooled.flatMap(cell => evaluation.predictors.filter(name => cell.scores[name]).map((name, i) => {
      const scores = cell.scores[name];
      return [i ? el('span.soft', null, String(cell.threshold)) : String(cell.threshold),
        i ? name : el('b', null, name), ...(known ? [explained(scores.oracle)] : []), estimated(scores.auroc),
        estimated(scores.gain, true), estimated(scores.brier), estimated(scores.ece)];
    })));
}

function tileParts(evaluation, tile) {
  const cells = evaluation.cells.filter(one => one.threshold === tile);
  const ranking = rankingPredictors(evaluation);
  const ranked = ranking.filter(name => cells.some(one => one.scores[name] && one.scores[name].auroc));
  const notes = new Map();
  for (const one of cells) if (one.note) notes.set(one.note, [...(notes.get(one.note) || []), one.stage]);
  const {auroc} = cells[0].scores[ranking[0]] || {};
  const open = tile === evaluation.thresholds[0] || matchMedia('(min-width: 700px)').matches;
  return el('details.of-tile', {open}, el('summary', null, el('h2', {id: `tile-${tile}`}, `Reaches ${tile}`),
    auroc ? el('span', null, ` AUROC ${auroc.value.toFixed(3)}`) : null),
    el('section', null, el('p', null, `${count(cells[0].runs_positive)} of ${count(cells[0].runs)} games reached it.`),
      [...notes].map(([note, stages]) => el('p.soft', null, `${stages.join(', ')}: ${note}.`))),
    ranked.length ? el('div.grid-2', null, aurocFigure(cells, ranked, tile), reliabilityFigure(evaluation, tile))
        : null,
    ranked.length ? el('section', null, stageTable(cells, ranking, tile)) : null,
    evaluation.truth ? truthParts(evaluation.truth, cells, tile) : null,
    el('details.card', null, el('summary', null, 'All metrics of all predictors'),
      table(`All metrics for ${tile}`, ['stage', 'predictor', ...METRICS.map(one => `>${one[1]}`)],
          cells.flatMap(one =>
        evaluation.predictors.filter(name => one.scores[name]).map(name =>
          [one.stage, name, ...METRICS.map(([metric]) => estimated(one.scores[name][metric],
              metric === 'gain' || metric === 'skill'))])))));
}

function aurocFigure(cells, names, tile) {
  const shift = i => (i - (names.length - 1) / 2) * 0.2;
  const stage = at => cells[Math.round(at)] ? cells[Math.round(at)].stage : '';
  const points = (name, i) => cells.map((one, at) => [at + shift(i), one.scores[name]
      && one.scores[name].auroc]).filter(pair => pair[1]).map(pair => pointOf(...pair));
  return figure(`AUROC for ${tile} by stage`,
      {pad: 0.5, x: {ticks: cells.map((_, i) => i), format: stage}, y: {label: 'AUROC', high: 1},
    series: names.map((name, i) => ({name, kind: 'dots', colour: i, points: points(name, i)}))},
        'With 95% intervals over games; 0.5 is chance.');
}

function reliabilityFigure(evaluation, tile) {
  const curve = evaluation.reliability.find(one => one.threshold === tile);
  if (!curve || !curve.bins.length) return null;
  return figure(`Reliability for ${tile}`,
      {x: {label: 'predicted', low: 0, high: 1, format: percent},
      y: {label: 'observed', low: 0, high: 1, format: percent},
    series: [{name: 'observed', kind: 'dots', points: curve.bins.map(one => pointOf(one.predicted, one.observed))},
      {name: 'perfect', points: [[0, 0], [1, 1]], colour: 2}]},
          'On all rows. Perfect probabilities are on the dotted line.');
}

function stageTable(cells, ranking, tile) {
  return table(`Scores for ${tile} by stage`,
      ['stage', '>rows', '>games that reached it', '>prevalence', ...ranking.map(name => `>AUROC ${name}`)],
      cells.map(one => [
    one.stage, count(one.rows), `${count(one.runs_positive)} of ${count(one.runs)}`, percent(one.prevalence),
        ...ranking.map(name => estimated(one.scores[name] && one.scores[name].auroc))]));
}

/** The comparison with rollouts: the figure, and the tables of metrics and of means. */
function truthParts(truth, cells, tile) {
  const curve = truth.curves.find(one => one.threshold === tile);
  const scored = cells.flatMap(one => Object.entries(one.scores).filter(pair => pair[1].oracle).map(([name,
      scores]) => [one.stage, name, scores.oracle]));
  const notes = [...new Set(scored.filter(one => one[2].note).map(one =>
    `${one[0]}: R2 is not measurable, since ${one[2].note}.`))];
  const means = [['labels', 'outcomes of their own games'], ['rollouts', 'rollouts'], ['critic', 'critic']];
  return [
    figure(`Predicted and true probability of ${tile}`,
        {height: 300, x: {label: 'predicted', low: 0, high: 1, format: percent},
        y: {label: 'true (rollouts)', low: 0, high: 1, format: percent},
      series: [{name: 'means of bins', kind: 'dots',
          points: curve.bins.map(one => pointOf(one.predicted, one.observed))},
        {name: 'positions', kind: 'specks', colour: 2, points: curve.points},
            {name: 'perfect', points: [[0, 0], [1, 1]], colour: 1}]},
    `The critic's probability, and the share of ${count(truth.rollouts)} rollouts that reached the tile. The noise `
      + 'of the rollouts moves single positions off the line, but hardly the means of bins.'),
    el('section', null, table(`Against rollouts for ${tile}`,
        ['stage', 'predictor', '>positions', ...ORACLE_METRICS.map(one => `>${one[1]}`), '>ECE noise'],
      scored.map(([stage, name, one]) => [stage, name, count(one.positions),
          explained(one),
          ...ORACLE_METRICS.slice(1).map(([metric]) => estimated(one[metric], metric === 'bias')), one.ece_noise.toFixed(3)])),
    notes.map(note => el('p.soft', null, note)),
    table(`Means over the positions for ${tile}`,
        ['mean', '>each position once', '>weighted by the rows that it represents'],
      means.map(([field, name]) => [name, estimated(curve.equal[field]), estimated(curve.weighted[field])])))];
}

function learningFigure(curves) {
  const series = [['training', curves.train],
      ['validation', curves.val]].filter(pair => pair[1].length).map(([name, points],
      i) => ({name, points, colour: i}));
  const best = curves.best_step === null ? '' : ` The best validation was at step ${count(curves.best_step)}.`;
  return figure('Learning curves', {series, x: {label: 'step', format: count}, y: {label: 'loss'}},
      `Cross-entropy by optimizer step, from the training's metrics.jsonl.${best}`);
}

function reading(evaluation) {
  const items = [
    ['AUROC', 'the probability that a row of a game that reached the tile scores higher than a row of a game that did '
      + 'not. 0.5 is chance.'],
    ['AUPRC', 'average precision. Chance is the prevalence.'],
    ['Brier', 'mean squared error of the probability. Smaller is better.'],
    ['ECE', 'mean gap between predicted and observed shares, over 15 bins of equal weight. Even perfect probabilities '
      + 'have an ECE above 0, which is larger for fewer games.'],
    ['Intervals', `cover 95% of ${count(evaluation.replicates)} bootstrap replicates, which draw whole games. All rows `
      + 'of a game share its outcome, so intervals from single rows would be several times too narrow.'],
    ['Weights', 'if only some rows of each game are drawn, each row counts as the rows of its game divided by the drawn '
      + 'rows. All figures are then for all positions.'],
    ['Baselines', 'the prevalence, the highest tile on the board, and the final score that the n-tuple player expects. '
      + 'Isotonic regression on training games turns them into probabilities.']];
  if (evaluation.truth) {
    items.push(['Against rollouts', 'the share of the rollouts from a position that reach the tile estimates its true '
      + 'probability, with a known noise. R2 is the share of the true probability\'s variance that a predictor '
      + 'explains: 1 is perfect, and 0 is as good as a constant. It is not measurable if the true probability hardly '
      + 'varies. Bias is the mean prediction minus the mean share. The ECE noise is the ECE of a calibrated predictor '
      + 'on the same number of positions.']);
  }
  return el('section', null, el('h2', null, 'How to read this'),
      el('dl.terms', null, items.map(([name, text]) => [el('dt', null, name), el('dd', null, text)])));
}

function signed(value, withSign) {
  return (withSign && value >= 0 ? '+' : '') + value.toFixed(3);
}

/** A number, and its interval on a second line: 0.812, 0.790–0.834. */
function estimated(one, withSign) {
  if (!one) return '–';
  const between = withSign || one.low < 0 ? ' to ' : '–';
  return el('span', null, signed(one.value, withSign), one.low === null ? null
      : el('small', null, `${signed(one.low, withSign)}${between}${signed(one.high, withSign)}`));
}

/** R2 of a predictor, if its rollouts can measure it. */
function explained(oracle) {
  return oracle && !oracle.r2 ? 'not measurable' : estimated(oracle && oracle.r2);
}

/** A point of a figure, with its interval if that is known. */
function pointOf(x, one) {
  return one.low === null ? [x, one.value] : [x, one.value, one.low, one.high];
}
