// Differences of two texts by line (Myers), and the merge of two changes of one text.

const MOST_EDITS = 800;

/** The lines of `a` and `b`: `{ kind: 'same' | 'removed' | 'added', a, b, text }`, with line numbers from 1. */
export function diff(a, b) {
	let start = 0;
	while (start < a.length && start < b.length && a[start] === b[start]) start++;
	let end = 0;
	while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
	const same = (i, j) => ({ kind: 'same', a: i + 1, b: j + 1, text: a[i] });
	const lines = [];
	for (let i = 0; i < start; i++) lines.push(same(i, i));
	let i = start, j = start;
	for (const move of edits(a.slice(start, a.length - end), b.slice(start, b.length - end))) {
		if (move === 'same') lines.push(same(i++, j++));
		else if (move === 'removed') lines.push({ kind: 'removed', a: i + 1, text: a[i++] });
		else lines.push({ kind: 'added', b: j + 1, text: b[j++] });
	}
	for (; i < a.length; i++, j++) lines.push(same(i, j));
	return lines;
}

function edits(a, b) {
	const most = a.length + b.length;
	const trace = [];
	let furthest = new Map([[1, 0]]);
	for (let d = 0; d <= Math.min(most, MOST_EDITS); d++) {
		trace.push(new Map(furthest));
		for (let k = -d; k <= d; k += 2) {
			const down = k === -d || (k !== d && furthest.get(k - 1) < furthest.get(k + 1));
			let i = down ? furthest.get(k + 1) : furthest.get(k - 1) + 1;
			while (i < a.length && i - k < b.length && a[i] === b[i - k]) i++;
			furthest.set(k, i);
			if (i >= a.length && i - k >= b.length) return path(trace, a.length, b.length);
		}
	}
	return [...a.map(() => 'removed'), ...b.map(() => 'added')];
}

function path(trace, i, j) {
	const moves = [];
	for (let d = trace.length - 1; d > 0; d--) {
		const furthest = trace[d], k = i - j;
		const down = k === -d || (k !== d && furthest.get(k - 1) < furthest.get(k + 1));
		const before = furthest.get(down ? k + 1 : k - 1);
		const start = down ? before : before + 1;
		for (; i > start; i--, j--) moves.push('same');
		moves.push(down ? 'added' : 'removed');
		if (down) j--;
		else i--;
	}
	for (; i > 0; i--) moves.push('same');
	return moves.reverse();
}

/** The changes of `a`: lines `from` to `to` (exclusive) are replaced by `lines`. */
function hunks(a, b) {
	const all = [];
	let hunk = null, at = 0;
	for (const line of diff(a, b)) {
		if (line.kind === 'same') {
			hunk = null;
			at = line.a;
			continue;
		}
		if (!hunk) all.push((hunk = { from: at, to: at, lines: [] }));
		if (line.kind === 'removed') hunk.to = at = line.a;
		else hunk.lines.push(line.text);
	}
	return all;
}

/** Both changes of `base`, or null if they touch the same lines. */
export function merge(base, mine, theirs) {
	const own = hunks(base, mine);
	const all = own.map((hunk) => ({ ...hunk, mine: true }));
	for (const their of hunks(base, theirs)) {
		const overlap = own.filter((each) => each.from <= their.to && their.from <= each.to);
		const equal = overlap.some((each) => each.from === their.from && each.to === their.to
			&& each.lines.join('\n') === their.lines.join('\n'));
		if (overlap.length && !equal) return null;
		if (!equal) all.push(their);
	}
	all.sort((a, b) => a.from - b.from);
	const lines = [];
	let at = 0;
	for (const hunk of all) {
		lines.push(...base.slice(at, hunk.from), ...hunk.lines);
		at = hunk.to;
	}
	return [...lines, ...base.slice(at)];
}

export const splitLines = (text) => text.replace(/\r\n?/g, '\n').split('\n');
