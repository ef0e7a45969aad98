// Nodes: the revision that each runs, its store, and the emergency limit.
import { h, show, say, keyed, pill, card, loading, head, table, segments, swap } from './dom.js';
import { call, get, readOnly } from './api.js';
import { number, latency, span, unknown, plural } from './format.js';
import { live, watch, every } from './live.js';
import { ask, notice, reason } from './dialog.js';

export const title = 'Nodes';

/** What people call a node; its id if it has no name. */
export const nodeName = (node) => node.name || node.id;

/** The shards whose breaker is not closed, as a node sees them. */
export const brokenShards = (node) => (node.shards || []).filter((shard) => shard.breaker !== 'closed');

export function storePill(node) {
	const count = node.shards?.length, [broken] = brokenShards(node);
	if (broken) return pill('bad', `breaker ${broken.breaker.replace('_', ' ')}: ${broken.address ?? broken.shard}`);
	return count ? pill('ok', count === 1 ? 'store healthy' : `${count} shards healthy`) : pill('plain', 'store in memory');
}

export const newestRevision = () => Math.max(live.revision ?? 0, ...(live.nodes || []).map((each) => each.revision || 0));

export function rulesPill({ revision, rules_error: refused }) {
	if (!revision) return unknown('the node has not reported its revision');
	if (refused) return h('span.pill.bad', { title: refused }, `r${revision}, newest refused`);
	const behind = newestRevision() - revision;
	return behind > 0 ? pill('warn', `r${revision}, ${behind} behind`) : pill('ok', `r${revision}`);
}

const COLUMNS = ['node', 'rules', 'store', 'decisions/s#', 'added p99#', 'drift#', 'credit#', 'up#'];

export function mount(root) {
	const { node, body } = table('Nodes', COLUMNS, 'cards'), place = h('div', loading()), count = h('small'), emergency = h('div', loading(1));
	const put = keyed(body, row, (each) => each.id);
	root.append(head('Nodes', count), h('div.stack', h('div.card', h('div.wide', place)), card('Emergency limit', null, emergency)));
	const refresh = () => {
		if (live.status === 'loading') return;
		const nodes = live.nodes || [], newest = newestRevision();
		say(count, nodes.length ? `${nodes.filter((each) => each.revision === newest).length} of ${plural(nodes.length, 'node')} run revision ${newest}${live.complete ? '' : '; the list is not complete'}` : '');
		swap(place, nodes.length && node, ['No node has reported', 'A node reports every two seconds, through the store or to its control plane.']);
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
	show(cells[0], h('span', h('b.mono', { title: `id ${first.id}` }, nodeName(first)), h('br'), h('small.faint', [first.address, first.version && `v${first.version}`, first.follower && 'follower'].filter(Boolean).join(' · '))));
	return {
		node: h('tr', cells),
		update(node) {
			const { shards = [], per_second: rates, latency: times, credit_tokens: credit, uptime_seconds: up } = node, alone = 'the store is in memory';
			[rulesPill(node), storePill(node), [number(rates?.decisions), 'not measured yet'], [latency(times?.p99_us), 'no decision was measured'],
				[shards.length ? `${number(Math.max(...shards.map((shard) => Math.abs(shard.drift_ms))))} ms` : '–', alone], [number(credit), alone], [up ? span(up) : '–', 'not reported'],
			].forEach((value, index) => show(cells[index + 1], value[0] === '–' ? unknown(value[1]) : value[0] ?? value));
		},
	};
}

const MODES = { default: 'As configured', off: 'Off', on_outage: 'On an outage', on: 'On' };

function showEmergency(place, { mode, per_second: perSecond, stored }, changed) {
	const shown = `${mode} ${stored}`;
	if (place.dataset.shown === shown) return;
	place.dataset.shown = shown;
	const choice = segments('Emergency limit', Object.entries(MODES), mode, async (next) => {
		choice.choose(mode);
		const label = MODES[next].toLowerCase();
		if (next === mode || !await ask({
			title: `Emergency limit: ${label}`, action: 'Change', hurts: next === 'on', name: 'emergency',
			will: [next === 'on' ? `Every address is limited at once on all nodes, to ${perSecond} requests a second on this one.` : `The emergency limit becomes “${label}” on all nodes.`, 'It can be undone here and from Audit.'],
			run: () => call('PUT', '/v1/emergency', { json: { mode: next } }),
		})) return;
		notice(`Emergency limit: ${label}.`);
		changed();
	});
	for (const each of choice.children) each.disabled = Boolean(readOnly());
	show(place, h('div.row', choice, h('span.dim', `${perSecond} requests a second for each address, when all else fails.`)), stored === false && h('p.faint', 'In force on this node only: the repository is unavailable. It is stored when the repository answers again.'), readOnly() && h('p.faint', readOnly()));
}
