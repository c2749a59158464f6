// The evaluation of a critic: how well it ranks and how well it is calibrated, beside the baselines.

import {askJson, refusalNode} from './api.js';
import {count, counted, el, facts, fill, message, percent, table} from './dom.js';
import {figure} from './charts.js';

const METRICS = [['auroc', 'AUROC'], ['auprc', 'AUPRC'], ['brier', 'Brier'], ['log_loss', 'log loss'], ['skill', 'skill'],
  ['ece', 'ECE'], ['gain', "critic's AUROC minus this"]];
const INTERVAL_GAMES = 5; // games that reach a tile, and that miss it, for an interval
const ORACLE_METRICS = [['r2', 'R2'], ['brier', 'Brier'], ['log_loss', 'log loss'], ['bias', 'bias'], ['ece', 'ECE']];

export function criticPage(main, given, shell, about) {
  const {critic} = about.judges;
  const body = el('div', null, message('Evaluating the critic on games that it did not learn from. This takes a while.'));
  const numbers = Object.entries(critic.metrics).filter(pair => typeof pair[1] === 'number').slice(0, 6).map(
    ([name, value]) => [name, String(Number(value.toPrecision(4)))]);
  fill(main, el('h1', null, 'Critic'), el('p.lead', null, `It was trained on games of ${critic.players.join(', ') || 'unknown players'}.`), body,
    el('section', null, el('h2', null, 'The critic'), facts([['kind', critic.kind],
      ['trained on', critic.full.join(', ')], ['predicts', critic.thresholds.join(', ')], ['SHA-256', critic.sha256.slice(0, 16)], ['step', count(critic.step)],
      ...numbers])));
  askJson('examination').then(document => body.isConnected && fill(body, examinationBody(document, document.curves)),
      error => fill(body, refusalNode(error)));
}

/** The figures and tables of an evaluation, and the learning curves {train, val, best_step} if they are known. */
export function examinationBody(document, curves) {
  const {evaluation} = document;
  const about = [['critic', document.critic], ['source', document.root], ['condition', document.where],
    ['games', count(evaluation.runs)], ['rows', `${count(evaluation.rows)} of ${count(evaluation.rows_in_all)}`]];
  const pooled = evaluation.thresholds.map(tile => evaluation.cells.find(one => one.threshold === tile));
  const measured = pooled.filter(one => !one.note);
  return [
    el('section', null, el('h2', null, 'Evaluated games'), facts(about), (document.notes || []).map(note => el('p', null, note))),
    el('section', null, measured.length ? summaryTable(evaluation, measured) : null,
      pooled.filter(one => one.note).map(one => el('p', null, missingGames(one)))),
    measured.map((one, i) => tileParts(evaluation, one.threshold, i === 0)),
    curves ? learningFigure(curves) : null,
    measured.length ? el('section', null, el('h2', null, 'Stages'), facts(evaluation.stages.map(one => [one.name, one.about]))) : null,
    measured.length ? reading(evaluation) : null];
}

/** Why a tile is not measured, and how many games are missing. */
function missingGames({threshold, runs, runs_positive: reached}) {
  const rare = Math.min(reached, runs - reached);
  const [told, verb] = reached <= runs - reached ? [reached, 'reached'] : [runs - reached, 'missed'];
  const missing = rare ? `About ${count((INTERVAL_GAMES - rare) * runs / rare)} more games are needed.`
    : `More games are needed, with ${INTERVAL_GAMES} that ${verb} it.`;
  return `${threshold} is not measured: ${count(told)} of ${counted(runs, 'game')} ${verb} it. ${missing}`;
}

function rankingPredictors(evaluation) {
  const [own, , ...others] = evaluation.predictors;
  return [own, ...others];
}

/** By tile: R2 only if rollouts measured the true probabilities; Brier and ECE only if training games calibrate the baselines. */
function summaryTable(evaluation, pooled) {
  const known = pooled.some(cell => Object.values(cell.scores).some(scores => scores.oracle));
  const [, ...baselines] = rankingPredictors(evaluation);
  const calibrated = pooled.some(cell => baselines.some(name => cell.scores[name] && cell.scores[name].brier));
  return table(`The critic and the baselines over all rows, with 95% intervals${
    calibrated ? '; lower is better for Brier and ECE' : ''}`,
  ['tile', 'predictor', ...(known ? ['>R2 (rollouts)'] : []), '>AUROC', ">critic's AUROC minus this",
    ...(calibrated ? ['>Brier', '>calibration error (ECE)'] : [])],
  pooled.flatMap(cell => (calibrated ? evaluation.predictors : rankingPredictors(evaluation))
    .filter(name => cell.scores[name]).map((name, i) => {
      const scores = cell.scores[name];
      return [i ? el('span.soft', null, String(cell.threshold)) : String(cell.threshold),
        i ? name : el('b', null, name), ...(known ? [explained(scores.oracle)] : []), estimated(scores.auroc),
        i ? estimated(scores.gain, true) : '', ...(calibrated ? [estimated(scores.brier), estimated(scores.ece)] : [])];
    })));
}

function tileParts(evaluation, tile, isFirst) {
  const all = evaluation.cells.filter(one => one.threshold === tile);
  const cells = all.filter(one => !one.note);
  const ranking = rankingPredictors(evaluation);
  const few = all.filter(one => one.note).map(one => `${one.stage} (${count(one.runs_positive)} of ${count(one.runs)})`);
  const own = cells[0].scores[ranking[0]];
  return el('details.of-tile', {open: isFirst || matchMedia('(min-width: 700px)').matches},
    el('summary', null, el('h2', {id: `tile-${tile}`}, `Reaches ${tile}`), el('span', null, ` AUROC ${own.auroc.value.toFixed(3)}`)),
    el('section', null, el('p', null, `${count(cells[0].runs_positive)} of ${count(cells[0].runs)} games reached it.`),
      few.length ? el('p.soft', null, `Too few games reached or missed it to measure the stages ${few.join(', ')}.`) : null),
    el('div.grid-2', null, aurocFigure(cells, ranking, tile), reliabilityFigure(evaluation, tile, own)),
    evaluation.truth ? truthParts(evaluation.truth, cells, tile) : null,
    el('details.card', null, el('summary', null, 'All metrics of all predictors'),
      table(`All metrics for ${tile}`, ['stage', 'predictor', '>rows', '>prevalence', ...METRICS.map(one => `>${one[1]}`)],
        cells.flatMap(one => evaluation.predictors.filter(name => one.scores[name]).map(name =>
          [one.stage, name, count(one.rows), percent(one.prevalence), ...METRICS.map(([metric]) =>
            estimated(one.scores[name][metric], metric === 'gain' || metric === 'skill'))])))));
}

function aurocFigure(cells, names, tile) {
  const shift = i => (i - (names.length - 1) / 2) * 0.2;
  const stage = at => cells[Math.round(at)] ? cells[Math.round(at)].stage : '';
  const points = (name, i) => cells.map((one, at) => [at + shift(i), one.scores[name] && one.scores[name].auroc])
    .filter(pair => pair[1]).map(pair => pointOf(...pair));
  return figure(`AUROC for ${tile} by stage`, {pad: 0.5, x: {ticks: cells.map((_, i) => i), format: stage},
    y: {label: 'AUROC', high: 1}, series: names.map((name, i) => ({name, kind: 'dots', colour: i, points: points(name, i)}))},
  'With 95% intervals over games; 0.5 is chance.');
}

function reliabilityFigure(evaluation, tile, {brier, ece}) {
  const curve = evaluation.reliability.find(one => one.threshold === tile);
  if (!curve || !curve.bins.length) return null;
  const [x, y] = ['predicted', 'observed'].map(label => ({label, low: 0, high: 1, format: percent}));
  return figure(`Reliability for ${tile}`, {x, y, series: [{name: 'perfect', points: [[0, 0], [1, 1]], colour: 2},
    {name: 'observed', kind: 'dots', colour: 0, points: curve.bins.map(one => pointOf(one.predicted, one.observed))}]},
  ['On all rows. Perfect probabilities are on the dotted line.', ...[['Brier', brier], ['Calibration error (ECE)', ece]]
    .map(([name, one]) => one ? `${name} ${one.value.toFixed(3)} (${one.low.toFixed(3)}–${one.high.toFixed(3)}).` : '')].join(' '));
}

/** The comparison with rollouts: the figure, and the tables of metrics and of means. */
function truthParts(truth, cells, tile) {
  const curve = truth.curves.find(one => one.threshold === tile);
  const scored = cells.flatMap(one => Object.entries(one.scores).filter(pair => pair[1].oracle)
    .map(([name, scores]) => [one.stage, name, scores.oracle]));
  const notes = new Set(scored.filter(one => one[2].note).map(one => `${one[0]}: R2 is not measurable, since ${one[2].note}.`));
  const means = [['labels', 'outcomes of their own games'], ['rollouts', 'rollouts'], ['critic', 'critic']];
  const [x, y] = ['predicted', 'true (rollouts)'].map(label => ({label, low: 0, high: 1, format: percent}));
  return [
    figure(`Predicted and true probability of ${tile}`, {height: 300, x, y, series: [
      {name: 'means of bins', kind: 'dots', points: curve.bins.map(one => pointOf(one.predicted, one.observed))},
      {name: 'positions', kind: 'specks', colour: 2, points: curve.points}, {name: 'perfect', points: [[0, 0], [1, 1]], colour: 1}]},
    `The critic's probability, and the share of ${count(truth.rollouts)} rollouts that reached the tile. The noise `
      + 'of the rollouts moves single positions off the line, but hardly the means of bins.'),
    el('section', null, table(`Against rollouts for ${tile}`,
      ['stage', 'predictor', '>positions', ...ORACLE_METRICS.map(one => `>${one[1]}`), '>ECE noise'],
      scored.map(([stage, name, one]) => [stage, name, count(one.positions), explained(one),
        ...ORACLE_METRICS.slice(1).map(([metric]) => estimated(one[metric], metric === 'bias')), one.ece_noise.toFixed(3)])),
    [...notes].map(note => el('p.soft', null, note)),
    table(`Means over the positions for ${tile}`, ['mean', '>each position once', '>weighted by the rows that it represents'],
      means.map(([field, name]) => [name, estimated(curve.equal[field]), estimated(curve.weighted[field])])))];
}

function learningFigure(curves) {
  const series = [['training', curves.train], ['validation', curves.val]].filter(pair => pair[1].length)
    .map(([name, points], colour) => ({name, points, colour}));
  const best = curves.best_step === null ? '' : ` The best validation was at step ${count(curves.best_step)}.`;
  return figure('Learning curves', {series, x: {label: 'step', format: count}, y: {label: 'loss'}},
    `Cross-entropy by optimizer step, from the training's metrics.jsonl.${best}`);
}

function reading({replicates, truth}) {
  const items = [
    ['AUROC', 'the probability that a row of a game that reached the tile scores higher than another row. 0.5 is chance.'],
    ['Brier, ECE', 'the mean squared error of the probability, and its mean distance from observed shares, over 15 bins of '
      + 'equal weight. Smaller is better. Even perfect probabilities have an ECE above 0.'],
    ['Intervals', `cover 95% of ${count(replicates)} bootstrap replicates of whole games, as all rows of a game share its outcome.`],
    ['Baselines', 'the highest tile on the board, and the final score that the n-tuple player expects.'],
    truth && ['Against rollouts', 'the share of the rollouts from a position that reach the tile estimates its true probability. '
      + 'R2 is the explained share of the variance of this probability: 1 is perfect, and 0 is as good as a constant. Bias is '
      + 'the mean prediction minus the mean share. The ECE noise is the ECE of a calibrated predictor on as many positions.']];
  return el('section', null, el('h2', null, 'How to read this'), el('dl.terms', null, items.filter(Boolean).map(([name, text]) =>
    [el('dt', null, name), el('dd', null, text)])));
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
