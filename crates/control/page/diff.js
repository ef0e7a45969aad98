// Differences of two texts by line (Myers), and the merge of two changes of one text.

const MOST_EDITS = 800;

/** The lines of `a` and `b`: `{ kind: 'same' | 'removed' | 'added', a, b, text }`, with line numbers from 1. */
export function diff(a, b) {
	let start = 0, end = 0;
	while (start < a.length && start < b.length && a[start] === b[start]) start++;
	while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end++;
	const moves = [...Array(start).fill('same'), ...edits(a.slice(start, a.length - end), b.slice(start, b.length - end)), ...Array(end).fill('same')];
	let i = 0, j = 0;
	return moves.map((kind) => {
		const text = kind === 'added' ? b[j] : a[i];
		return { kind, text, ...(kind !== 'added' && { a: ++i }), ...(kind !== 'removed' && { b: ++j }) };
	});
}

const goesDown = (furthest, k, d) => k === -d || (k !== d && furthest.get(k - 1) < furthest.get(k + 1));

function edits(a, b) {
	const trace = [], furthest = new Map([[1, 0]]);
	for (let d = 0; d <= Math.min(a.length + b.length, MOST_EDITS); d++) {
		trace.push(new Map(furthest));
		for (let k = -d; k <= d; k += 2) {
			let i = goesDown(furthest, k, d) ? furthest.get(k + 1) : furthest.get(k - 1) + 1;
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
		const k = i - j, down = goesDown(trace[d], k, d), before = trace[d].get(down ? k + 1 : k - 1);
		for (const start = down ? before : before + 1; i > start; i--, j--) moves.push('same');
		moves.push(down ? 'added' : 'removed');
		if (down) j--;
		else i--;
	}
	return [...Array(i).fill('same'), ...moves.reverse()];
}

/** The changes of `a`: lines `from` to `to` (exclusive) are replaced by `lines`. */
function hunks(a, b) {
	const all = [];
	let hunk = null, at = 0;
	for (const { kind, text, a: line } of diff(a, b)) {
		if (kind !== 'same' && !hunk) all.push((hunk = { from: at, to: at, lines: [] }));
		if (kind === 'same') hunk = null;
		if (kind === 'added') hunk.lines.push(text);
		else at = line;
		if (kind === 'removed') hunk.to = at;
	}
	return all;
}

/** Both changes of `base`, or null if they touch the same lines. */
export function merge(base, mine, theirs) {
	const own = hunks(base, mine), all = [...own];
	for (const their of hunks(base, theirs)) {
		const overlap = own.filter((each) => each.from <= their.to && their.from <= each.to);
		const equal = overlap.some((each) => JSON.stringify(each) === JSON.stringify(their));
		if (overlap.length && !equal) return null;
		if (!equal) all.push(their);
	}
	const lines = [];
	let at = 0;
	for (const hunk of all.sort((a, b) => a.from - b.from)) {
		lines.push(...base.slice(at, hunk.from), ...hunk.lines);
		at = hunk.to;
	}
	return [...lines, ...base.slice(at)];
}

export const splitLines = (text) => text.replace(/\r\n?/g, '\n').split('\n');
