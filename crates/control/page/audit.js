// Audit: every change, by which token, from where; and its undo.
import { h, show, empty, loading, head, button, act, pill, table, cell } from './dom.js';
import { call, get, path, readOnly } from './api.js';
import { when } from './format.js';
import { ask, notice, reason } from './dialog.js';
import { rollBack } from './rules.js';

export const title = 'Audit';
const COUNT = 50;

export function mount(root) {
	const filter = h('input.filter', { type: 'search', 'data-search': true, 'aria-label': 'Filter', placeholder: 'Filter: name, action, target', oninput: sift });
	const { node, body } = table('Changes', ['when', 'who', 'what', 'details', 'from', ''], 'cards');
	const older = button('Older', load), place = h('div', loading(6));
	root.append(head('Audit', 'every change, append-only', filter), h('div.card', place));
	let before = '', newest = 0;

	function sift() {
		const words = filter.value.toLowerCase().split(/\s+/);
		for (const row of body.children) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
	}
	async function load() {
		try {
			const { entries } = await get(`/v1/audit?count=${COUNT}${before}`);
			newest ||= Math.max(0, ...entries.map((entry) => entry.revision || 0));
			body.append(...entries.map(row));
			before = `&before=${entries.at(-1)?.id}`;
			older.hidden = entries.length < COUNT;
			show(place, body.children.length ? [node, older] : empty('No changes yet', 'Publishes, resets, blocks, grants and tokens appear here, with their undo.'));
			sift();
		} catch (problem) {
			show(place, empty('The audit log cannot be shown', reason(problem)));
		}
	}
	function row(entry) {
		const { time, actor, role, action, target, detail, revision, from } = entry, undo = undoOf(entry, newest);
		return h('tr', cell('when', when(time)), cell('who', h('span', actor, role === 'read' && [' ', pill('plain', 'read')])),
			cell('what', h('span', h('b', action.replaceAll(/[._]/g, ' ')), ' ', h('code', target))),
			h('td', h('p', detail, revision && [' ', h('a', { href: '#/rules/history' }, `r${revision}`)])), cell('from', h('code', from)),
			h('td.n', undo && act(readOnly(), 'Undo', async () => {
				if (!await undo()) return;
				before = '';
				newest = 0;
				show(body);
				load();
			}, 'small', { 'aria-label': `Undo ${action} ${target}` })));
	}
	load();
}

function undoOf({ action, target, revision }, newest) {
	const undo = (title, will, run) => () => ask({ title, action: 'Undo', hurts: true, will: [will], run: async () => { await run(); notice('Undone.'); } });
	if (revision > 1) return () => rollBack(revision - 1, newest);
	const id = action === 'grant.add' && target.match(/, grant (\S+)$/)?.[1];
	if (id) return undo('End the grant?', 'The extra tokens that are left are gone at once.', () => call('DELETE', path('v1', 'grants', id)));
	if (action.startsWith('emergency')) return undo('Set the emergency limit back?', 'It is as configured again, on all nodes.', () => call('PUT', '/v1/emergency', { json: { mode: 'default' } }));
	return null;
}
