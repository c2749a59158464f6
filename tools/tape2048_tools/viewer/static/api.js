// Documents: from the server, or in a report from the page itself.

import {el} from './dom.js';

export class Refusal extends Error {
  constructor(code, document) {
    super(document.message || `the viewer answered ${code}`);
    this.code = code;
    this.hint = document.hint;
  }
}

/** Keep the key that a link delivers, and remove the link from the address, since it works once. */
export function keepKey() {
  const {key} = document.documentElement.dataset;
  if (key) localStorage.setItem('key', key);
  if (location.search) history.replaceState(null, '', location.pathname + location.hash);
}

export async function ask(name, given) {
  const query = new URLSearchParams(Object.entries(given || {}).filter(pair => pair[1] !== ''
      && pair[1] !== undefined));
  let response;
  try {
    response = await fetch(`/api/${name}?${query}`,
        {headers: {authorization: `Bearer ${localStorage.getItem('key')}`}});
  } catch {
    throw new Refusal(0, {message: 'The viewer does not answer.', hint: 'Is `tape2048 view` still running?'});
  }
  if (response.ok) return response;
  throw new Refusal(response.status, await response.json().catch(() => ({})));
}

export const askJson = async (name, given) => (await ask(name, given)).json();
export const askGame = async (name, given) => unpackGame(await (await ask(name, given)).arrayBuffer());

const READERS = {
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array, f32: Float32Array, f64: Float64Array,
};

/** Read a packed game: its header, with its arrays by name. */
export function unpackGame(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const one of header.arrays) {
    const raw = new READERS[one.type](buffer, 4 + length + one.at, one.count);
    arrays[one.name] = one.unit ? summed(raw, one.unit, one.rows) : raw;
  }
  return {...header, ...arrays};
}

/** Undo the packing of numbers as differences, in units. */
function summed(raw, unit, rows) {
  const found = new Float64Array(raw.length);
  const width = raw.length / rows;
  const unsigned = raw instanceof Uint16Array;
  for (let row = 0; row < rows; row++) {
    let total = 0;
    for (let i = row * width; i < (row + 1) * width; i++) {
      total += raw[i];
      if (unsigned) total &= 0xffff;
      found[i] = total * unit;
    }
  }
  return found;
}

/** Read a game of a report: deflated, and encoded in base64. */
export const inlineGame = text => inflatedGame(new Blob([Uint8Array.from(atob(text), char => char.charCodeAt(0))]));

export async function fetchedGame(address) {
  const response = await fetch(address).catch(() => null);
  if (!response || !response.ok) throw new Refusal(404, {message: 'The web server does not have this game.'});
  return inflatedGame(await response.blob());
}

async function inflatedGame(blob) {
  const stream = blob.stream().pipeThrough(new DecompressionStream('deflate'));
  return unpackGame(await new Response(stream).arrayBuffer());
}

/** The message that replaces a page that could not be drawn. */
export function refusalNode(error) {
  return el('div.message.error', {role: 'alert'}, el('p', null, error.message || String(error)),
    error.hint ? el('p.soft', null, error.hint) : null);
}
