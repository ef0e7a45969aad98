// Elements. Text is only ever inserted as text nodes: nothing that comes from a server is parsed as HTML. The content
// security policy (trusted types) makes the browser refuse anything else.

function fill(node, children) {
	for (const child of children.flat(Infinity)) if (child || child === 0) node.append(child instanceof Node ? child : String(child));
	return node;
}

const maker = (create) => (tag, ...parts) => {
	const [name, ...names] = tag.split('.'), node = create(name);
	if (names.length) node.setAttribute('class', names.join(' '));
	for (const [key, value] of Object.entries(parts[0]?.constructor === Object ? parts.shift() : {})) {
		if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
		else if (key === 'value') node.value = value;
		else if (value || value === 0) node.setAttribute(key, value === true ? '' : value);
	}
	return fill(node, parts);
};

/** An element with classes, attributes if the first part is an object, and children: `h('p.dim', { id: 'a' }, 'text')`. */
export const h = maker((name) => document.createElement(name));
export const svg = maker((name) => document.createElementNS('http://www.w3.org/2000/svg', name));

/** Text with the parts between backticks as code. */
export const coded = (text) => text.split('`').map((part, index) => (index % 2 ? h('code', part) : part));

export function show(node, ...children) {
	node.replaceChildren();
	return fill(node, children);
}

/** Sets the text of an element if it differs, so that a selection in it stays. */
export function say(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

/** Keeps one child per item, by key: focus and selection stay when figures change. `make(item)` returns `{ node, update(item) }`. */
export function keyed(parent, make, keyOf) {
	let known = new Map();
	return (items) => {
		const next = new Map();
		let place = parent.firstChild;
		for (const item of items) {
			const key = keyOf(item), row = known.get(key) || make(item);
			if (next.has(key)) continue;
			next.set(key, row);
			row.update?.(item);
			if (row.node === place) place = place.nextSibling;
			else parent.insertBefore(row.node, place);
		}
		for (const [key, row] of known) if (!next.has(key)) row.node.remove();
		known = next;
	};
}

export const button = (label, onclick, kind = '', attributes) => h('button', { type: 'button', class: `btn ${kind}`, onclick, ...attributes }, label);

/** A button that is disabled if there is a reason, which it shows. */
export const act = (locked, label, onclick, kind, attributes) => button(label, onclick, kind, { disabled: Boolean(locked), title: locked, ...attributes });

/** A coloured word with a shape before it, so that the colour is never alone. */
export const pill = (kind, text) => h(`span.pill.${kind}`, text);

export const card = (title, extra, ...content) => h('section.card', h('h2', h('span', title), extra), content);

export const empty = (title, ...lines) => h('div.empty', h('b', title), lines.map((line) => h('p', line)));
export const emptyCard = (...texts) => h('div.card', empty(...texts));

export const loading = (rows = 3) => h('div.loading', { role: 'status', 'aria-label': 'Loading' }, Array.from({ length: rows }, () => h('i')));

/** Shows `node`, or the empty state if it is null. */
export function swap(place, node, texts) {
	if (node ? place.firstChild !== node : place.firstChild?.className !== 'empty') show(place, node || empty(...texts));
}

/** A choice of one of a few: `options` are [value, label]. */
export function segments(label, options, chosen, onchange) {
	const choose = (value) => buttons.forEach((each) => each.setAttribute('aria-pressed', each.dataset.value === value));
	const buttons = options.map(([value, text]) => h('button', { type: 'button', 'data-value': value, onclick: () => { choose(value); onchange(value); } }, text));
	choose(chosen);
	return Object.assign(h('div.seg', { role: 'group', 'aria-label': label }, buttons), { choose });
}

export const head = (title, note, ...right) => h('header.head', h('h1', { tabindex: -1 }, title, note && h('small', note)), right);

/** A table with column headings; those of numbers end with `#`. */
export function table(caption, columns, kind, ...rows) {
	const body = h('tbody', rows), headings = columns.map((column) => h(column.endsWith('#') ? 'th.n' : 'th', { scope: 'col' }, column.replace('#', '')));
	return { node: h('table', { class: kind }, h('caption.sr', caption), h('thead', h('tr', headings)), body), body };
}

/** A cell that shows the heading of its column where there is no room for columns. */
export const cell = (label, ...content) => h('td', { 'data-label': label }, content);
