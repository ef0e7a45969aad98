// A difference side by side, with unchanged stretches folded and the changed part of a line marked.
import { h, card } from './dom.js';
import { plural } from './format.js';

const AROUND = 3;

export function diffCard(title, lines) {
	const rows = [];
	for (let at = 0; at < lines.length;) {
		const removed = [], added = [];
		for (; lines[at] && lines[at].kind !== 'same'; at++) (lines[at].kind === 'removed' ? removed : added).push(lines[at]);
		for (let index = 0; index < Math.max(removed.length, added.length); index++) rows.push([removed[index], added[index]]);
		if (lines[at]) rows.push([lines[at], lines[at++]]);
	}
	const near = rows.map(() => false);
	rows.forEach(([a, b], index) => { if (a !== b) near.fill(true, Math.max(0, index - AROUND), index + AROUND + 1); });
	const body = h('tbody');
	for (let at = 0; at < rows.length;) {
		const folded = [];
		while (at < rows.length && !near[at]) folded.push(rows[at++]);
		if (folded.length) {
			const fold = h('tr.fold', h('td', { colspan: 4 }, h('button', { type: 'button', onclick: () => fold.replaceWith(...folded.map(drawn)) }, plural(folded.length, 'unchanged line'))));
			body.append(fold);
		}
		while (near[at]) body.append(drawn(rows[at++]));
	}
	return card(title, null, h('div.scrolling', h('table.diff', h('caption.sr', `${title}: before on the left, after on the right`), [1, 2].map(() => [h('col.no'), h('col')]), body)));
}

function drawn([a, b]) {
	const side = (line, number, kind, text) => (line ? [h('td.no', number), h(`td.${kind}`, text)] : [h('td.none-no'), h('td.none')]);
	if (a === b) return h('tr.same', side(a, a.a, 'same', a.text), side(b, b.b, 'same', b.text));
	const [from, to] = a && b ? [middle(a.text, b.text), middle(b.text, a.text)] : [a?.text, b?.text];
	return h('tr', side(a, a?.a, 'del', from), side(b, b?.b, 'add', to));
}

/** `text` with the part marked that differs from `other`. */
function middle(text, other) {
	let start = 0, end = 0;
	while (start < text.length && text[start] === other[start]) start++;
	while (end < Math.min(text.length, other.length) - start && text.at(-1 - end) === other.at(-1 - end)) end++;
	return [text.slice(0, start), h('mark', text.slice(start, text.length - end)), text.slice(text.length - end)];
}

const written = (value) => (value === undefined || value === null ? 'none' : typeof value === 'string' ? value : JSON.stringify(value));
export const summary = (parts) => h('ul.changes', parts.map(({ part, name, kind, fields }) => h('li', `${part} `, h('b.mono', name), fields.length
	? `: ${fields.map((each) => `${each.name} ${written(each.before)} → ${written(each.after)}`).join(', ')}` : ` ${kind}`)));
