// Overview: four live figures, charts, rules by share limited, nodes, events.
import { h, show, say, keyed, pill, card, loading, segments, head, table, swap } from './dom.js';
import { number, compact, percent, latency, latencyUnit, known, figure, when } from './format.js';
import { chart, sparkline } from './chart.js';
import { live, watch, setRange } from './live.js';
import { nodeName, storePill, rulesPill } from './nodes.js';

export const title = 'Overview';

const SECONDS = { '5m': 300, '1h': 3600 };
const OUTCOMES = ['allowed', 'limited', 'denied', 'degraded'];
const MOST_SHOWN = 6;

/** The colour of an event: what it means for the service. */
const tone = (kind) => (/opened|fail|left|_on$|unhealthy/.test(kind) ? 'bad' : /closed|join|publish|force|_off$|healthy/.test(kind) ? 'ok' : 'warn');

export function mount(root) {
	const stats = ['decisions', 'limited', 'degraded', 'added latency, p50 / p99'].map((label) => {
		const value = h('b'), note = h('p', label);
		return { value, note, node: h('div.card.stat', value, note) };
	});
	const none = () => ({ loading: 'Loading…', lost: 'No connection' }[live.status] ?? live.problem?.message ?? 'No decisions in this time');
	const traffic = chart({
		label: 'Decisions per second', none, least: 4, axis: compact, text: (value) => `${number(value)}/s`,
		series: OUTCOMES.map((key) => ({ key, label: key, color: key })),
	});
	const store = chart({
		label: 'Store latency', least: 100, values: true, text: latency, none: () => (live.status === 'live' && !live.problem ? 'No calls to a shared store' : none()),
		axis: (value, most) => { const [size, unit] = latencyUnit(most); return `${number(value / size)} ${unit}`; },
		series: [{ key: 'store_p50_us', label: 'p50', color: 'allowed', line: true }, { key: 'store_p99_us', label: 'p99', color: 'degraded', line: true, dashed: true }],
	});
	const rules = table('Rules by share limited', ['rule', 'limited, over time', 'checks/s#', 'limited#', ''], 'shares');
	const events = h('ol.events'), nodes = h('ul.mini');
	const lists = [
		[rules.node, h('div', loading()), keyed(rules.body, ruleRow, (rule) => rule.id), ranked, ['No rule has counted a request yet', 'Send traffic to a door, and this list fills.']],
		[nodes, h('div', loading()), keyed(nodes, nodeRow, (node) => node.id), () => live.nodes || [], ['No node has reported']],
		[events, h('div', loading()), keyed(events, eventRow, (event) => `${event.t} ${event.text}`), () => live.events, ['No events', 'Publishes, breakers and nodes that join or leave appear here.']],
	];
	root.append(head('Overview', 'all nodes', segments('Range', [['5m', '5 min'], ['1h', '1 h']], live.range, setRange)),
		h('div.stats', stats.map(({ node }) => node)),
		h('div.grid', card('Decisions per second', traffic.legend, traffic.node), card('Store latency', store.legend, store.node)),
		h('div.grid', card('Rules by share limited', null, lists[0][1]), h('div.stack', card('Nodes', h('a', { href: '#/nodes' }, 'all'), lists[1][1]), card('Events', null, lists[2][1]))));

	function update() {
		figures(stats);
		const drawn = { points: live.points, events: live.events.map((event) => ({ ...event, tone: tone(event.kind) })), step: live.step, seconds: SECONDS[live.range] };
		traffic.update(drawn);
		store.update(drawn);
		if (live.status === 'loading') return;
		for (const [list, place, put, items, none] of lists) {
			swap(place, items().length && list, none);
			put(items().slice(0, list === rules.node ? 50 : MOST_SHOWN));
		}
	}
	const stop = watch(update);
	update();
	return () => {
		stop();
		traffic.close();
		store.close();
	};
}

const share = (rule) => percent(rule.limited, rule.allowed + rule.limited);
const ranked = () => [...live.rules].sort((a, b) => (share(b) ?? -1) - (share(a) ?? -1) || a.id.localeCompare(b.id));

function figures([decisions, limited, degraded, added]) {
	const last = live.points.findLast((point) => known(point.allowed));
	const why = live.problem?.message ?? 'no figures yet';
	const total = last && OUTCOMES.reduce((sum, key) => sum + last[key], 0);
	const put = ({ value }, ...content) => {
		// Only what differs is drawn again.
		const next = h('b', content);
		if (value.textContent !== next.textContent) value.replaceChildren(...next.childNodes);
	};
	put(decisions, figure(last && number(total), '/s', why));
	put(limited, figure(last && total && number(percent(last.limited, total)), '%', last ? 'no decisions in this second' : why));
	say(limited.note, last ? `limited · ${number(last.limited)}/s` : 'limited');
	put(degraded, figure(last && number(last.degraded), '/s', why));
	degraded.node.className = `card stat ${last ? (last.degraded > 0 ? 'violet' : 'good') : ''}`;
	say(degraded.note, `degraded${!last ? '' : last.degraded > 0 ? ' · decided without the store' : ' · store healthy'}`);
	const measured = live.points.findLast((point) => known(point.p50_us));
	const [size, unit] = latencyUnit(measured?.p50_us ?? 0);
	put(added, figure(measured && number(measured.p50_us / size), unit, last ? 'no decision was measured' : why), measured && h('span.second', `/ ${latency(measured.p99_us)}`));
}

function ruleRow(first) {
	const spark = h('td'), rate = h('td.n'), limited = h('td.n'), fill = h('i');
	return {
		node: h('tr', h('td', h('a.mono', { href: `#/rules?rule=${encodeURIComponent(first.id)}` }, first.id)), spark, rate, limited, h('td', h('span.bar', fill))),
		update(rule) {
			const part = share(rule);
			show(spark, sparkline(rule.spark));
			say(rate, number((rule.allowed + rule.limited) / (live.points.length * live.step || 1)));
			say(limited, part === null ? '–' : `${number(part)} %`);
			fill.style.width = `${part ?? 0}%`;
		},
	};
}

function nodeRow(first) {
	const state = h('span');
	return { node: h('li', h('a.mono', { href: '#/nodes', title: `id ${first.id}` }, nodeName(first)), state), update: (node) => show(state, storePill(node), ' ', rulesPill(node)) };
}

const eventRow = (event) => ({ node: h('li', when(event.t), h('p', pill(tone(event.kind), event.kind.replaceAll('_', ' ')), ' ', event.text)) });
