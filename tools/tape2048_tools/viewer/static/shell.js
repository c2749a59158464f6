// The common part of the pages of the viewer and of a report: links, keys, light and dark.

import {el, fill, message} from './dom.js';
import {REPLAY_KEYS} from './replay.js';

const KEEP_LINK_MS = 250;

/** Install pages {name: title}. `show(path, given, main)` draws the page of a link. If it returns a function, that
 * function is called when the page is left. */
export function installPage(pages, show) {
  const main = document.getElementById('main');
  let leave = null;
  let replay = null;
  let shown = null;
  let prefixed = false;
  let timer = 0;
  // Of each entry of the history, [scroll position, height]: a page that is drawn again grows to its height later.
  const places = new Map();
  let place = 0;
  history.scrollRestoration = 'manual';

  const shell = {
    hold(found) { replay = found; },
    /** Go to a page with parameters; empty parameters are omitted. */
    go(page, given) { location.hash = shell.linkOf(page, given); },
    linkOf(page, given) {
      const query = new URLSearchParams(Object.entries(given || {}).filter(pair => pair[1]));
      return `#${page}${query.size ? `?${query}` : ''}`;
    },
    /** Replace the link of the current page, without a step in the history. */
    keepLink(link) {
      clearTimeout(timer);
      const page = main.firstElementChild;
      timer = setTimeout(() => {
        if (main.firstElementChild !== page || location.hash !== shown) return; // or another page is about to come
        history.replaceState(history.state, '', link);
        shown = location.hash;
      }, KEEP_LINK_MS);
    },
  };

  const route = async () => {
    if (location.hash === shown) return;
    shown = location.hash;
    places.set(place, [scrollY, main.offsetHeight]);
    place = (history.state || {}).place || Math.random();
    history.replaceState({place}, '');
    if (leave) leave();
    if (replay) replay.stop();
    [leave, replay] = [null, null];
    const [path, query] = location.hash.slice(1).split(/\?(.*)/s);
    const isGame = /^[0-9a-f]{10}\/|^move=/.test(path);
    const name = isGame ? 'games' : path || Object.keys(pages)[0];
    for (const link of document.querySelectorAll('nav a[data-page]')) {
      if (link.dataset.page === name) {
        link.setAttribute('aria-current', 'page');
        // Not scrollIntoView: Tab would start here instead of at the top.
        const nav = link.parentElement;
        nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
      }
      else link.removeAttribute('aria-current');
    }
    const title = isGame ? 'Replay' : pages[name] || 'Not found';
    if (Object.keys(pages).length) document.title = `${title} · tape2048`;
    if (!main.dataset.ready) fill(main, el('h1', null, title), message('Loading…'));
    main.dataset.ready = 'no';
    const done = await show(isGame ? path : name, Object.fromEntries(new URLSearchParams(query || '')), main);
    if (typeof done === 'function') leave = done;
    const [y, height] = places.get(place) || [0, 0];
    main.style.minHeight = `${height}px`;
    scrollTo(0, y);
    main.dataset.ready = 'yes';
  };

  const redraw = () => { if (replay) replay.curves.draw(); };
  const switchTheme = () => {
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const now = document.documentElement.dataset.theme || (dark ? 'dark' : 'light');
    document.documentElement.dataset.theme = now === 'dark' ? 'light' : 'dark';
    redraw();
  };
  const showKeys = () => {
    const names = Object.entries(pages);
    const keys = [...names.length ? [[`g, then ${names.map(([name]) => name[0]).join(' ')}`,
        `go to ${names.map(one => one[1].toLowerCase()).join(', ')}`]] : [],
      ['t', 'light or dark'], ['?', 'these keys'], ...REPLAY_KEYS];
    const dialog = el('dialog', {'aria-label': 'Keys'}, el('h2', null, 'Keys'),
      el('dl.keys', null, keys.map(([key, what]) => [el('dt', null, el('kbd', null, key)), el('dd', null, what)])),
      el('button', {type: 'button', onclick: () => dialog.close()}, 'Close'));
    dialog.addEventListener('close', () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  const onKey = event => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (event.target.matches('input:not([type=range]):not([type=checkbox]), select, textarea')) return;
    if (prefixed) {
      prefixed = false;
      const page = Object.keys(pages).find(name => name[0] === event.key);
      if (page) shell.go(page);
      return;
    }
    const pressing = event.key === ' ' && event.target.matches('button, a, summary, input');
    const scrolling = event.target.matches('.wide') && event.key.startsWith('Arrow');
    if (replay && !pressing && !scrolling && replay.key(event)) event.preventDefault();
    else if (event.key === 'g') prefixed = true;
    else if (event.key === 't') switchTheme();
    else if (event.key === '?') showKeys();
  };

  fill(document.querySelector('.top nav'),
      Object.entries(pages).map(([name, title]) => el('a', {href: `#${name}`, 'data-page': name}, title)));
  document.getElementById('theme').addEventListener('click', switchTheme);
  document.getElementById('keys').addEventListener('click', showKeys);
  document.querySelector('.skip').addEventListener('click', event => { event.preventDefault(); main.focus(); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  addEventListener('keydown', onKey);
  addEventListener('hashchange', route);
  queueMicrotask(route);
  return shell;
}
