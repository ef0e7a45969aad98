// The frame around the pages: session, navigation, keys of the keyboard, the state of the connection.
import { get, call, session, readOnly, onExpired } from './api.js';
import { h, show, say, button } from './dom.js';
import { clock } from './format.js';
import { live, watch, start, stop, retry } from './live.js';
import { tell, notice, reason } from './dialog.js';
import { login } from './login.js';
import * as overview from './overview.js';
import * as rules from './rules.js';
import * as keys from './keys.js';
import * as top from './top.js';
import * as nodes from './nodes.js';
import * as audit from './audit.js';

const PAGES = { overview, rules, keys, top, nodes, audit };
const byId = (id) => document.getElementById(id);
const main = byId('main'), frame = byId('frame'), loginPlace = byId('login');
let leave = () => {}, current = null, prefix = 0;

/** `#/keys/api_key/sk_1?endpoint=/a` is `{ page: 'keys', parts: ['api_key', 'sk_1'], query }`. */
function place() {
	const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
	let parts = path.split('/');
	try {
		parts = parts.map(decodeURIComponent);
	} catch {} // As it is.
	const page = parts.shift();
	return { page: page in PAGES ? page : 'overview', parts: parts.filter(Boolean), query: new URLSearchParams(query) };
}

function go(focus) {
	if (!session.role) return;
	const target = place();
	// A page that shows other parts of itself keeps its state.
	if (current === target.page && PAGES[current].moved?.(target)) return;
	leave();
	current = target.page;
	for (const link of document.querySelectorAll('nav a')) link.setAttribute('aria-current', link.dataset.page === current && 'page');
	const banner = h('div', { role: 'alert', hidden: true }), body = h('div');
	show(main, banner, body);
	const close = PAGES[current].mount(body, target);
	const update = () => connection(banner, body);
	update();
	const unwatch = watch(update), ticking = setInterval(update, 1000);
	leave = () => {
		unwatch();
		clearInterval(ticking);
		close?.();
	};
	document.title = `${PAGES[current].title} · Tollgate`;
	scrollTo(0, 0);
	if (focus) (main.querySelector('[autofocus]') || main.querySelector('h1')).focus();
}

/** Says above the page when its figures are old, or decisions are degraded. */
function connection(banner, body) {
	const lost = live.status === 'lost';
	body.classList.toggle('stale', lost);
	const broken = (live.nodes || []).flatMap((node) => nodes.brokenShards(node).map((shard) => `${shard.address ?? shard.shard} at ${nodes.nodeName(node)}`));
	const state = lost ? `lost ${live.lostSince}` : broken.join();
	if (banner.dataset.state !== state) {
		banner.dataset.state = state;
		banner.hidden = !state;
		banner.className = `banner note ${lost ? 'bad' : 'violet'}`;
		if (lost) show(banner, h('span', h('b', 'Connection lost. '), `Figures are those of ${clock(live.lostSince)}; decisions do not depend on this page. `, h('span.wait')), button('Retry now', retry, 'small'));
		else show(banner, h('span', h('b', 'Degraded. '), `The breaker is open for ${broken.slice(0, 3).join(', ')}${broken.length > 3 ? ` and ${broken.length - 3} more` : ''}: the failure policy of each rule decides.`), h('a.btn.small', { href: '#/nodes' }, 'Nodes'));
	}
	if (lost && live.retryAt) say(banner.querySelector('.wait'), `Trying again in ${Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000))} s.`);
}

function side() {
	const { status } = live, known = live.nodes || [];
	byId('connection').className = `state ${{ live: 'good', lost: 'poor' }[status] ?? ''}`;
	say(byId('connection'), { live: 'connected', lost: 'disconnected' }[status] ?? 'connecting');
	say(byId('badge-rules'), nodes.newestRevision() ? `r${nodes.newestRevision()}` : '');
	say(byId('badge-nodes'), known.length ? String(known.length) : '');
	byId('badge-nodes').className = known.every((node) => node.state === 'healthy') ? 'good' : 'poor';
}

async function enter() {
	Object.assign(session, await get('/v1/session', { open: true }));
	show(byId('signed-in'), location.host, h('br'), `${session.name} · ${readOnly() ? 'read only' : 'operate'}`);
	loginPlace.hidden = true;
	frame.hidden = false;
	show(loginPlace);
	start();
	if (current) PAGES[current].resumed?.();
	else go(false);
}

/** The login in place of the pages. After a session has ended they are only hidden: what was being edited stays. */
function signIn(ended) {
	stop();
	session.role = null;
	loginPlace.hidden = false;
	frame.hidden = true;
	document.title = 'Sign in · Tollgate';
	show(loginPlace, login(enter, ended));
	byId('token').focus();
}

async function signOut() {
	try {
		await call('DELETE', '/v1/session', { open: true });
	} catch (problem) {
		if (problem.status !== 401) return notice(`Not signed out: ${reason(problem)}`, 'bad');
	}
	leave();
	leave = () => {};
	current = null;
	show(main);
	signIn();
}

const THEMES = { system: '◐', light: '☀', dark: '☾' };
function theme(next) {
	const { dataset } = document.documentElement, now = next || dataset.theme || 'system';
	if (now === 'system') delete dataset.theme;
	else dataset.theme = now;
	try {
		if (next) localStorage.setItem('tollgate-theme', now);
	} catch {} // Without storage, the choice ends with the page.
	byId('theme').setAttribute('aria-label', `Theme: ${now}`);
	byId('theme').title = `Theme: ${now} (click to change)`;
	say(byId('theme'), THEMES[now]);
	return now;
}

function help() {
	const rows = [['/', 'search: a key, or in the page'], ...Object.entries(PAGES).map(([page, { title }]) => [`g ${page[0]}`, `go to ${title}`]), ['e', 'edit the rules (on Rules)'],
		['Ctrl Enter', 'from the editor to Publish'], ['Esc Tab', 'leave the editor'], ['← →', 'move the crosshair of a chart'], ['?', 'this help']];
	tell('Keyboard', h('dl', rows.map(([key, text]) => [h('dt', key.split(' ').map((part) => [h('kbd', part), ' '])), h('dd', text)])));
}

addEventListener('keydown', (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || !session.role || document.querySelector('dialog[open]') || event.target.closest?.('input, textarea, select')) return;
	const page = event.timeStamp - prefix < 1500 && Object.keys(PAGES).find((name) => name[0] === event.key);
	prefix = event.key === 'g' ? event.timeStamp : 0;
	const search = main.querySelector('[data-search]');
	if (page) location.hash = `#/${page}`;
	else if (event.key === '?') help();
	else if (event.key === '/' && search) search.focus();
	else if (event.key === '/') location.hash = '#/keys';
	else if (event.key === 'e' && current === 'rules') main.querySelector('textarea')?.focus();
	else return;
	event.preventDefault();
});
addEventListener('hashchange', () => go(true));
byId('theme').addEventListener('click', () => theme(Object.keys(THEMES)[(Object.keys(THEMES).indexOf(theme()) + 1) % 3]));
byId('help').addEventListener('click', help);
byId('sign-out').addEventListener('click', signOut);
document.querySelector('.skip').addEventListener('click', (event) => {
	event.preventDefault();
	main.focus();
});
onExpired(() => session.role && signIn('Your session has ended. Nothing that you wrote is lost.'));
watch(side);
theme();
enter().catch((problem) => {
	if (problem.status === 401) return signIn();
	loginPlace.hidden = false;
	show(loginPlace, h('div.login', h('div.card.empty', h('b', problem.title || 'Not available'), h('p', `${reason(problem)} Trying again…`))));
	setTimeout(() => location.reload(), 3000);
});
