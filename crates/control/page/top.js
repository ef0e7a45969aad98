// Top: the keys that are limited most and allowed most, and the busiest routes.
import { h, show, keyed, card, loading, segments, head, say, table, swap } from './dom.js';
import { get } from './api.js';
import { number, plural } from './format.js';
import { reason } from './dialog.js';
import { every } from './live.js';
import { keyLink } from './keys.js';

export const title = 'Top';

const LISTS = [
	['limited', 'Limited most', 'No key was limited', 'Nothing was refused in this time.'],
	['allowed', 'Allowed most', 'No requests', 'No request was allowed in this time.'],
	['routes', 'Busiest routes', 'No routes', 'Routes are the endpoint templates of the rules.'],
];

export function mount(root) {
	let scope = 'fleet';
	const note = h('span'), error = h('p.note.bad', { hidden: true, role: 'alert' });
	const lists = LISTS.map(([name, heading, ...none]) => {
		const { node, body } = table(heading, name === 'routes' ? ['', 'route', 'requests#'] : ['', 'key', `${name}#`], 'rank');
		const place = h('div', loading(5));
		let most = 1;
		const put = keyed(body, ({ route, kind, name: key, fingerprint }) => {
			const rank = h('td'), count = h('td.n'), fill = h('i');
			return {
				node: h('tr', { title: fingerprint && `fingerprint in logs: ${fingerprint}` }, rank, h('td', route ? h('code', route) : keyLink(kind, key, fingerprint), h(`span.bar.c-${name}`, fill)), count),
				update(item) {
					say(rank, String(item.rank));
					say(count, number(item.count));
					fill.style.width = `${(100 * item.count) / most}%`;
				},
			};
		}, (item) => item.route ?? `${item.kind} ${item.fingerprint}`);
		return {
			card: card(heading, null, place),
			update(top) {
				const items = (top[name] || []).map((item, index) => ({ ...item, rank: index + 1 }));
				most = items[0]?.count || 1;
				swap(place, items.length && node, none);
				put(items);
			},
		};
	});
	const poll = every(3000, async () => {
		try {
			const top = await get(`/v1/top?count=20&scope=${scope}`);
			error.hidden = true;
			for (const list of lists) list.update(top);
			say(note, `last ${plural(top.window_seconds, 'second')}, estimated`);
		} catch (problem) {
			error.hidden = false;
			show(error, reason(problem));
		}
	});
	root.append(head('Top', note, segments('Nodes', [['fleet', 'All nodes'], ['node', 'This node']], scope, (next) => { scope = next; poll.now(); })),
		error, h('div.thirds', lists.map((list) => list.card)));
	return poll.stop;
}
