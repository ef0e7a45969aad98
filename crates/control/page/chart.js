// A chart of series over time, in SVG: axes with units, a legend that switches series, a crosshair with all values at
// that moment, and marks of events. Only the paths change when a point arrives, so nothing flickers.
import { h, svg, show, say } from './dom.js';
import { clock, known, span } from './format.js';

const LEFT = 46, RIGHT = 6, TOP = 12, BOTTOM = 22;

function roundUp(value) {
	const power = 10 ** Math.floor(Math.log10(value));
	return power * [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value * 0.999);
}

/** Series are stacked unless `line`. `least` is the least top of the axis, `values` shows them in the legend, `none()` says why there are none. */
export function chart({ label, series, axis, text, least, values, none }) {
	const hidden = new Set();
	let points = [], events = [], step = 1, seconds = 300, width = 0, height = 0, top = 0, at = null;
	const rules = svg('g'), xs = svg('g'), areas = svg('g'), marks = svg('g'), cross = svg('line.cross', { y1: TOP });
	const drawing = svg('svg', { role: 'img', tabindex: 0, 'aria-label': label }, rules, areas, marks, xs, cross);
	const tip = h('div.tip', { hidden: true }), reason = h('p'), nothing = h('div.empty', reason);
	const node = h('div.chart', drawing, tip, nothing);
	const shapes = series.map((each, index) => {
		const shape = { ...each, now: h('b'), area: svg(`path.area.c-${each.color}${index ? '' : '.base'}`), edge: svg(`path.edge.c-${each.color}${each.dashed ? '.dashed' : ''}`) };
		areas.append(shape.area, shape.edge);
		shape.toggle = h(`button.c-${each.color}${each.line ? '.line' : ''}${each.dashed ? '.dashed' : ''}`, {
			type: 'button', 'aria-pressed': 'true',
			onclick: () => {
				if (!hidden.delete(each.key)) hidden.add(each.key);
				shape.toggle.setAttribute('aria-pressed', !hidden.has(each.key));
				draw();
			},
		}, h('i'), each.label, shape.now);
		return shape;
	});
	const legend = h('div.legend', { role: 'group', 'aria-label': `Series of ${label}` }, shapes.map(({ toggle }) => toggle));

	const end = () => points.at(-1)?.t ?? Date.now();
	const x = (t) => LEFT + (width - LEFT - RIGHT) * (1 - (end() - t) / (seconds * 1000));
	const y = (value) => height - BOTTOM - (height - TOP - BOTTOM) * (value / top);
	const within = (items) => items.filter(({ t }) => t >= end() - seconds * 1000 && t <= end());
	const isKnown = (point) => series.some(({ key }) => known(point[key]));
	const valueText = (point, key) => (known(point[key]) ? text(point[key]) : '–');

	function draw() {
		if (!width) return;
		const shown = within(points).filter(isKnown), active = shapes.filter(({ key }) => !hidden.has(key));
		// A gap in time begins a new run.
		const runs = [];
		shown.forEach((point, index) => {
			if (!index || point.t - shown[index - 1].t > step * 2500) runs.push([]);
			runs.at(-1).push(point);
		});
		top = roundUp(Math.max(least, ...shown.map((point) => active.reduce((most, { key, line }) => (line ? Math.max(most, point[key] || 0) : most + (point[key] || 0)), 0))));
		const base = new Map();
		for (const { key, line, area, edge } of shapes) {
			let over = '', around = '';
			for (const run of hidden.has(key) ? [] : runs) {
				const upper = [], lower = [];
				for (const point of line ? run.filter((each) => known(each[key])) : run) {
					const from = line ? 0 : base.get(point) || 0, to = from + (point[key] || 0), left = x(point.t).toFixed(1);
					base.set(point, to);
					upper.push(`${left},${y(to).toFixed(1)}`);
					lower.unshift(`${left},${y(from).toFixed(1)}`);
				}
				if (!upper.length) continue;
				over += `M${upper.join('L')}`;
				around += `M${upper.join('L')}L${lower.join('L')}Z`;
			}
			edge.setAttribute('d', line || shapes[0].key === key ? over : '');
			area.setAttribute('d', line ? '' : around);
		}
		show(rules, [0, 1, 2, 3, 4].map((quarter) => (top * quarter) / 4).map((value) => [svg('line.rule', { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
			svg('text', { x: LEFT - 8, y: y(value) + 4, 'text-anchor': 'end' }, axis(value, top))]));
		const ticks = width < 420 ? 2 : 5;
		show(xs, Array.from({ length: ticks + 1 }, (_, index) => seconds * (1 - index / ticks)).map((back) => svg('text',
			{ x: x(end() - back * 1000), y: height - 4, 'text-anchor': back === seconds ? 'start' : back ? 'middle' : 'end' }, back ? `−${span(back)}` : 'now')));
		show(marks, within(events).map(({ t, tone }) => [svg('line.mark', { x1: x(t), x2: x(t), y1: TOP, y2: height - BOTTOM }),
			svg(`path.flag.${tone}`, { d: `M${x(t)} ${height - BOTTOM - 5}l5 5-5 5-5-5z` })]));
		const latest = shown.at(-1);
		nothing.hidden = Boolean(latest);
		say(reason, none());
		if (values) for (const { now, key } of shapes) say(now, latest ? valueText(latest, key) : '');
		drawing.setAttribute('aria-label', `${label}. ${latest ? shapes.map((each) => `${each.label} ${valueText(latest, each.key)}`).join(', ') : none()}`);
		place();
	}

	const nearest = (shown) => shown.reduce((best, each) => (Math.abs(each.t - at) < Math.abs(best.t - at) ? each : best), shown[0]);

	/** The crosshair at the point nearest to the time `at`. */
	function place() {
		const point = at === null ? null : nearest(within(points));
		tip.hidden = !point;
		cross.setAttribute('visibility', point ? 'visible' : 'hidden');
		if (!point) return;
		const left = x(point.t), right = left > width * 0.55;
		for (const [name, value] of [['x1', left], ['x2', left], ['y2', height - BOTTOM]]) cross.setAttribute(name, value);
		const near = events.filter(({ t }) => Math.abs(t - point.t) <= Math.max(step * 500, (seconds * 6000) / width));
		show(tip, h('p', clock(point.t)), h('dl', shapes.map(({ key, color, label: name }) => [h(`dt.c-${color}`, h('i'), name), h('dd', valueText(point, key))]).reverse()),
			near.map((event) => h('p.ev', event.text)));
		tip.style.left = right ? 'auto' : `${left + 12}px`;
		tip.style.right = right ? `${width - left + 12}px` : 'auto';
	}
	function moveTo(t) {
		at = t;
		place();
	}

	drawing.addEventListener('pointermove', (event) => {
		const share = (event.clientX - drawing.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT);
		moveTo(share < -0.02 || share > 1.02 ? null : end() - (1 - share) * seconds * 1000);
	});
	for (const name of ['pointerleave', 'blur']) drawing.addEventListener(name, () => moveTo(null));
	drawing.addEventListener('keydown', (event) => {
		const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key], shown = within(points);
		if (!move || !shown.length) return;
		event.preventDefault();
		at ??= end();
		moveTo(shown[Math.max(0, Math.min(shown.indexOf(nearest(shown)) + move, shown.length - 1))].t);
	});
	const observer = new ResizeObserver(([entry]) => {
		({ width, height } = entry.contentRect);
		draw();
	});
	observer.observe(node);
	return {
		node, legend, close: () => observer.disconnect(),
		update(next) {
			({ points, events, step, seconds } = next);
			draw();
		},
	};
}

export function sparkline(values) {
	const most = Math.max(...values, 1), line = values.map((value, index) => `${((index * 110) / (values.length - 1)).toFixed(1)},${(20 - (18 * value) / most).toFixed(1)}`).join('L');
	return svg('svg.spark', { viewBox: '0 0 110 22', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, values.length > 1 && [svg('path.fill', { d: `M${line}L110,22L0,22Z` }), svg('path', { d: `M${line}` })]);
}
