// Nodes: the revision that each runs, its store, and the emergency limit.
import { h, show, say, keyed, pill, card, loading, head, table, segments, swap } from './dom.js';
import { call, get, readOnly } from './api.js';
import { number, latency, span, known, unknown, plural } from './format.js';
import { live, watch, every } from './live.js';
import { ask, notice, reason } from './dialog.js';

export const title = 'Nodes';

/** The shards whose breaker is not closed, as a node sees them. */
export const brokenShards = (node) => (node.shards || []).filter((shard) => shard.breaker !== 'closed');

/** The state of the store as a node sees it. */
export function storePill(node) {
	const { length } = node.shards || [], [broken] = brokenShards(node);
	if (!length) return pill('plain', 'store in memory');
	return broken ? pill('bad', `breaker ${broken.breaker.replace('_', ' ')}: ${broken.address ?? broken.shard}`) : pill('ok', length === 1 ? 'store healthy' : `${length} shards healthy`);
}

/** The revision of a node, and whether it is behind. */
export function rulesPill(node) {
	const newest = Math.max(live.revision || 0, ...(live.nodes || []).map((each) => each.revision || 0));
	if (!node.revision) return unknown('the node has not reported its revision');
	if (node.rules_error) return h('span.pill.bad', { title: node.rules_error }, `r${node.revision}, newest refused`);
	return node.revision < newest ? pill('warn', `r${node.revision}, ${newest - node.revision} behind`) : pill('ok', `r${node.revision}`);
}

const COLUMNS = ['node', 'rules', 'store', 'decisions/s#', 'added p99#', 'drift#', 'credit#', 'up#'];

export function mount(root) {
	const list = table('Nodes', COLUMNS, 'cards'), place = h('div', loading()), count = h('small'), emergency = h('div', loading(1));
	const put = keyed(list.body, row, (node) => node.id);
	root.append(head('Nodes', count), h('div.stack', h('div.card', h('div.wide', place)), card('Emergency limit', null, emergency)));
	const refresh = () => {
		if (live.status === 'loading') return;
		const nodes = live.nodes || [], newest = Math.max(0, ...nodes.map((each) => each.revision || 0));
		say(count, nodes.length ? `${nodes.filter((each) => each.revision === newest).length} of ${plural(nodes.length, 'node')} run revision ${newest}${live.complete ? '' : '; the list is not complete'}` : '');
		swap(place, nodes.length && list.node, ['No node has reported', 'A node reports every two seconds, through the store or to its control plane.']);
		put(nodes);
	};
	const stop = watch(refresh);
	refresh();
	const poll = every(5000, async () => {
		try {
			showEmergency(emergency, await get('/v1/emergency'), () => poll.now());
		} catch (problem) {
			show(emergency, h('p.dim', reason(problem)));
		}
	});
	return () => {
		stop();
		poll.stop();
	};
}

function row(first) {
	const cells = COLUMNS.map((column) => h(column.endsWith('#') ? 'td.n' : 'td', { 'data-label': column.replace('#', '') }));
	const put = (index, value, why) => show(cells[index], value === null || value === '–' ? unknown(why) : value);
	put(0, h('span', h('b.mono', first.id), h('br'), h('small.faint', [first.address, first.version && `v${first.version}`].filter(Boolean).join(' · '))));
	return {
		node: h('tr', cells),
		update(node) {
			const alone = 'the store is in memory';
			put(1, rulesPill(node));
			put(2, storePill(node));
			put(3, number(node.per_second?.decisions), 'the node has not reported twice yet');
			put(4, latency(node.latency?.p99_us), 'no decision was measured');
			put(5, node.shards?.length ? `${number(Math.max(...node.shards.map((shard) => Math.abs(shard.drift_ms))))} ms` : null, alone);
			put(6, number(node.credit_tokens), alone);
			put(7, known(node.uptime_seconds) ? span(node.uptime_seconds) : null, 'not reported');
		},
	};
}

const MODES = [['default', 'As configured'], ['off', 'Off'], ['on_outage', 'On an outage'], ['on', 'On']];

function showEmergency(place, { mode }, changed) {
	if (place.dataset.mode === mode) return;
	place.dataset.mode = mode;
	const choice = segments('Emergency limit', MODES, mode, async (next) => {
		choice.choose(mode);
		if (next === mode) return;
		const label = Object.fromEntries(MODES)[next].toLowerCase();
		if (await ask({
			title: `Emergency limit: ${label}`, action: 'Change', hurts: next === 'on', name: 'emergency',
			will: [next === 'on' ? 'Every address is limited to 10 requests a second, at once, on all nodes.' : `The emergency limit becomes “${label}” on all nodes.`, 'It can be undone here and from Audit.'],
			run: () => call('PUT', '/v1/emergency', { json: { mode: next } }),
		})) {
			notice(`Emergency limit: ${label}.`);
			changed();
		}
	});
	for (const each of choice.children) each.disabled = Boolean(readOnly());
	show(place, h('div.row', choice, h('span.dim', '10 requests a second for each address, when all else fails.')), readOnly() && h('p.faint', readOnly()));
}
