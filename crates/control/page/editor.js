// A YAML editor: a transparent text area above lines that are drawn with colours, numbers, marks of errors and of changes.
import { h, show } from './dom.js';
import { diff, splitLines } from './diff.js';

const TOKEN = /((?<=^|\s)#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|([A-Za-z_][\w.-]*)(?=\s*:(?:\s|$))|(?<=[:,-]\s+|[[{]\s*)(\d[\d_.]*(?:\/\d*[a-z]+|[a-z%]+)?)(?=\s*(?:[,\]}]|\s#|$))/g;
const KINDS = ['y-com', 'y-str', 'y-key', 'y-num'];
const LINE_HEIGHT = 21, PADDING = 10;

/** The line as nodes, with the characters `from` to `to` (exclusive) underlined. */
function drawn(text, from, to) {
	const kinds = Array(text.length).fill('');
	for (const match of text.matchAll(TOKEN)) kinds.fill(KINDS[match.slice(1).findIndex(Boolean)], match.index, match.index + match[0].length);
	const nodes = [];
	for (let start = 0; start < text.length;) {
		const marked = start >= from && start < to, kind = kinds[start];
		let end = start + 1;
		while (end < text.length && kinds[end] === kind && (end >= from && end < to) === marked) end++;
		const part = h(kind ? `span.${kind}` : 'span', text.slice(start, end));
		nodes.push(marked ? h('u', part) : part);
		start = end;
	}
	if (from >= text.length) nodes.push(h('u', ' '));
	return nodes;
}

/** Positions count characters; a text area counts UTF-16 units. */
const units = (text, characters) => [...text].slice(0, characters).join('').length;

/** `onchange()` is called after every change by the operator, `onsubmit()` at Ctrl Enter. */
export function editor({ label, onchange, onsubmit, readOnly }) {
	const area = h('textarea', { 'aria-label': label, 'aria-describedby': 'editor-help', readonly: readOnly, spellcheck: 'false', autocomplete: 'off', autocapitalize: 'off', wrap: 'off' });
	const lines = h('div', { 'aria-hidden': 'true' }), node = h('div.scroll', h('div.sheet', lines, area));
	let texts = [], base = [], marks = [], leaving = false;

	function draw() {
		texts = splitLines(area.value);
		// Lines that differ from the base, and lines before which some were removed.
		const changed = new Set(), gone = new Set();
		diff(base, texts).forEach((line, index, all) => {
			if (line.kind === 'added') changed.add(line.b);
			else if (line.kind === 'same' && all[index - 1]?.kind === 'removed') gone.add(line.b);
		});
		while (lines.childElementCount > texts.length) lines.lastChild.remove();
		texts.forEach((text, index) => {
			const number = index + 1, line = lines.children[index] || lines.appendChild(h('span.ln', { 'data-n': number }));
			const mark = marks.find((each) => each.line === number);
			const state = JSON.stringify([text, mark]);
			if (line.state !== state) {
				line.state = state;
				const from = mark ? units(text, mark.column - 1) : -1;
				show(line, drawn(text, from, mark ? Math.max(from + 1, units(text, mark.column - 1 + mark.length)) : -1));
			}
			for (const [name, on] of [['err', mark?.severity === 'error'], ['wrn', mark?.severity === 'warning'], ['changed', changed.has(number)], ['gone', gone.has(number)]]) line.classList.toggle(name, Boolean(on));
		});
	}

	/** Inserts a text; the browser's undo knows of it. */
	function insert(text) {
		if (!document.execCommand('insertText', false, text)) area.setRangeText(text, area.selectionStart, area.selectionEnd, 'end');
	}

	area.addEventListener('input', () => {
		// Until the next answer, the marks of lines that were edited mislead.
		const next = splitLines(area.value);
		marks = marks.filter(({ line }) => next[line - 1] === texts[line - 1]);
		draw();
		onchange();
	});
	area.addEventListener('keydown', (event) => {
		const { key, shiftKey } = event, { selectionStart, selectionEnd: end, value } = area;
		const start = value.lastIndexOf('\n', selectionStart - 1) + 1;
		if (key === 'Enter' && (event.ctrlKey || event.metaKey)) {
			event.preventDefault();
			onsubmit();
		} else if (key === 'Tab' && !leaving && !readOnly) {
			event.preventDefault();
			const block = value.slice(start, end);
			if (!shiftKey && !block.includes('\n')) return insert('  ');
			const moved = shiftKey ? block.replace(/^ {1,2}/gm, '') : block.replace(/^/gm, '  ');
			area.setSelectionRange(start, end);
			insert(moved);
			area.setSelectionRange(start, start + moved.length);
		} else if (key === 'Enter' && !readOnly) {
			event.preventDefault();
			const line = value.slice(start, selectionStart);
			insert(`\n${line.match(/^ */)[0]}${/^\s*- \S/.test(line) ? '  ' : ''}${/:\s*$/.test(line) ? '  ' : ''}`);
		}
		leaving = key === 'Escape' || (leaving && (key === 'Tab' || key === 'Shift'));
	});

	return {
		node, area,
		get text() { return area.value; },
		set text(value) {
			area.value = value;
			draw();
		},
		set base(text) { base = splitLines(text); },
		/** `{ severity, line, column, length }` each; of those of a line the first is drawn. */
		set marks(next) {
			marks = next;
			draw();
		},
		goTo(line, column) {
			const place = texts.slice(0, line - 1).join('\n').length + (line > 1) + units(texts[line - 1] || '', column - 1);
			area.focus({ preventScroll: true });
			area.setSelectionRange(place, place);
			const top = (line - 1) * LINE_HEIGHT + PADDING;
			if (top < node.scrollTop || top > node.scrollTop + node.clientHeight - 40) node.scrollTop = top - node.clientHeight / 3;
			node.scrollIntoView({ block: 'nearest' });
		},
	};
}
