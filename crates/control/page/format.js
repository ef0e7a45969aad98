// Numbers, durations and times as text. What is not known is a dash with a reason, never 0.
import { h } from './dom.js';

const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const exactTime = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });
const clockTime = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });

export const known = (value) => typeof value === 'number' && Number.isFinite(value);

/** Three significant digits, thousands separated; whole above 100. */
export function number(value) {
	if (!known(value)) return '–';
	return Math.abs(value) >= 99.95 ? grouped.format(value) : String(Number(value.toPrecision(3)));
}

export function compact(value) {
	const [size, unit] = [[1e9, ' G'], [1e6, ' M'], [1e3, ' k']].find(([least]) => value >= least && value >= 1e4) || [1, ''];
	return number(value / size) + unit;
}

export const percent = (part, whole) => (whole > 0 ? (100 * part) / whole : null);

/** The unit in which a latency in microseconds reads best: [divisor, unit]. */
export const latencyUnit = (us) => [[1e6, 's'], [1e3, 'ms']].find(([least]) => us >= least) || [1, 'µs'];
export function latency(us) {
	const [size, unit] = latencyUnit(us);
	return known(us) ? `${number(us / size)} ${unit}` : '–';
}

const SPANS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
/** A duration in seconds in one unit, or two if that helps: 28 ms, 36 s, 2 min, 1 h 20 min. */
export function span(seconds) {
	if (seconds > 0 && seconds < 1) return latency(seconds * 1e6);
	if (seconds < 10 && seconds % 1) return `${Number(seconds.toPrecision(2))} s`;
	const rest = Math.round(seconds), at = SPANS.findIndex(([size]) => rest >= size);
	if (at < 0) return '0 s';
	const [size, unit] = SPANS[at], [small, smallUnit] = SPANS[at + 1] || [1, ''], whole = Math.floor(rest / size), part = Math.floor((rest % size) / small);
	return `${whole} ${unit}${part && whole < 10 && at < 2 ? ` ${part} ${smallUnit}` : ''}`;
}

export const per = (seconds) => `per ${{ 1: 'second', 60: 'minute', 3600: 'hour', 86400: 'day' }[seconds] ?? span(seconds)}`;

export const clock = (ms) => clockTime.format(ms);

export const toMs = (time) => (known(time) ? time : Date.parse(time));

function relative(ms) {
	const seconds = Math.round((Date.now() - ms) / 1000);
	if (Math.abs(seconds) < 5) return 'now';
	return seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
}

/** A time: relative, with the exact one on hover. It follows the clock while it is shown. */
export function when(time) {
	const ms = toMs(time);
	return h('time', { datetime: new Date(ms).toISOString(), title: exactTime.format(ms), 'data-ms': ms }, relative(ms));
}

setInterval(() => {
	if (document.hidden) return;
	for (const node of document.querySelectorAll('time')) {
		const text = relative(Number(node.dataset.ms));
		if (node.textContent !== text) node.textContent = text;
	}
}, 1000);

/** A dash for a figure that is not known, and why. */
export const unknown = (reason) => h('span.dash', { title: reason }, h('span', { 'aria-hidden': 'true' }, '–'), h('span.sr', `not known: ${reason}`));

/** A figure with a small unit, or a dash with the reason. */
export const figure = (text, unit, reason) => (text && text !== '–' ? [text, h('small', unit)] : unknown(reason));

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? '' : 's'}`;
