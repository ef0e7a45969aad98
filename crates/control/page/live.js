// The live figures of the fleet: the series so far, then one point a second. Nothing is asked while the page is hidden.
import { get, session } from './api.js';
import { toMs } from './format.js';

const REFRESH_MS = { '5m': 5000, '1h': 15000 };
const LONGEST_RETRY_MS = 8000;
const MOST_POINTS = 300, MOST_EVENTS = 60;

/** What is known now. `status`: loading, live, lost. Times are in milliseconds, counts per second. */
export const live = {
	status: 'loading', range: '5m', step: 1, points: [], rules: [], events: [], revision: null, nodes: null, complete: true,
	lostSince: null, lastHeard: null, retryAt: null, problem: null,
};

const changes = new EventTarget();
let source = null, timer = null, attempt = 0, generation = 0;

export function watch(run) {
	changes.addEventListener('change', run);
	return () => changes.removeEventListener('change', run);
}
const changed = () => changes.dispatchEvent(new Event('change'));

const dated = (raw) => ({ ...raw, t: toMs(raw.t) });
function point(raw, step) {
	const rates = dated(raw);
	for (const key of ['allowed', 'limited', 'denied', 'degraded']) if (rates[key]) rates[key] /= step;
	return rates;
}

export function start() {
	stop();
	if (!document.hidden && session.role) refresh();
}

export function stop() {
	generation++;
	clearTimeout(timer);
	source?.close();
	source = null;
}

export function retry() {
	attempt = 0;
	start();
}

export function setRange(range) {
	Object.assign(live, { range, points: [], status: 'loading' });
	changed();
	start();
}

async function refresh() {
	const mine = generation;
	clearTimeout(timer);
	try {
		const [figures, { nodes, complete }] = await Promise.all([get(`/v1/live?range=${live.range}`), get('/v1/nodes')]);
		if (mine !== generation) return;
		const { step_seconds: step, points, rules, events } = figures;
		Object.assign(live, {
			step, rules, nodes, complete, points: points.map((each) => point(each, step)), events: events.map(dated).sort((a, b) => b.t - a.t),
			status: 'live', lastHeard: Date.now(), lostSince: null, retryAt: null, problem: null,
		});
		attempt = 0;
		if (!source) open();
		timer = setTimeout(refresh, REFRESH_MS[live.range]);
	} catch (problem) {
		if (mine !== generation) return;
		const wait = Math.min(LONGEST_RETRY_MS, 1000 * 2 ** attempt++);
		// An answer that is an error is no lost connection: only the figures are missing.
		if (problem.status) {
			Object.assign(live, { status: 'live', problem, lastHeard: Date.now(), lostSince: null });
			if (!source && problem.status !== 401) open();
		} else Object.assign(live, { status: 'lost', problem, lostSince: live.lostSince ?? live.lastHeard ?? Date.now(), retryAt: Date.now() + wait });
		if (problem.status !== 401) timer = setTimeout(refresh, wait);
	}
	changed();
}

function open() {
	const stream = source = new EventSource('/v1/events/stream');
	const on = (name, run) => stream.addEventListener(name, ({ data }) => {
		if (stream !== source) return;
		run(JSON.parse(data));
		live.lastHeard = Date.now();
		changed();
	});
	on('live', (raw) => {
		const latest = point(raw, 1);
		if (live.range !== '5m' || latest.t <= live.points.at(-1)?.t) return;
		live.points = [...live.points, latest].slice(-MOST_POINTS);
	});
	on('event', (raw) => {
		if (!live.events.some(({ id }) => id === raw.id)) live.events = [dated(raw), ...live.events].slice(0, MOST_EVENTS);
	});
	on('revision', (raw) => { live.revision = Math.max(live.revision ?? 0, raw.revision ?? raw); });
	stream.addEventListener('error', () => {
		if (stream !== source) return;
		// The answer to the next question says what is wrong.
		stream.close();
		source = null;
		clearTimeout(timer);
		timer = setTimeout(refresh, attempt ? LONGEST_RETRY_MS : 300);
	});
}

document.addEventListener('visibilitychange', () => (document.hidden ? stop() : start()));

/** Calls `run` now and then every `ms` while the page is visible, one at a time. */
export function every(ms, run) {
	let next = null, stopped = false;
	const turn = async () => {
		clearTimeout(next);
		if (!document.hidden && session.role) await run();
		clearTimeout(next);
		if (!stopped) next = setTimeout(turn, ms);
	};
	turn();
	return { now: turn, stop: () => { stopped = true; clearTimeout(next); } };
}
