// Dialogs and notices. An action that hurts asks for the name of what it changes and says what will happen.
import { h, button, show } from './dom.js';

export function notice(text, kind = 'done') {
	const node = h(`div.${kind}`, text);
	document.getElementById('notices').append(node);
	setTimeout(() => node.remove(), kind === 'bad' ? 12000 : 6000);
}

export const reason = (problem) => problem.message;

export const field = (label, input, hint) => h('label.field', h('span', label, hint && h('span.faint', ` ${hint}`)), input);

function open(title, form, ...content) {
	const node = h('dialog', { 'aria-label': title, onclose: () => node.remove() }, h('form', { method: 'dialog', ...form }, h('h2', title), content));
	document.body.append(node);
	node.showModal();
	return node;
}

/** Asks before an action: `will` happen, `name` must be typed. A failure of `run(values)` is shown. Resolves to true if it was done. */
export const ask = ({ title, will, action, hurts, name, fields = [], run }) => new Promise((resolve) => {
	const typed = name && h('input.mono', { autocomplete: 'off', spellcheck: 'false', oninput: ready });
	const error = h('div.note.bad', { role: 'alert', hidden: true }), go = h('button', { class: `btn main ${hurts ? 'hurt' : ''}` }, action);
	function ready() { go.disabled = Boolean(typed && typed.value.trim() !== name); }
	ready();
	const submit = async (event) => {
		event.preventDefault();
		go.disabled = true;
		try {
			await run(Object.fromEntries(fields.map(({ key, input }) => [key, input.value.trim()])));
			resolve(true);
			node.close();
		} catch (problem) {
			error.hidden = false;
			show(error, reason(problem), problem.errors?.map((each) => h('p', `${each.line}:${each.column} ${each.message}`)));
			ready();
		}
	};
	const node = open(title, { onsubmit: submit }, h('ul.will', will.filter(Boolean).map((line) => h('li', line))), fields.map(({ label, input }) => field(label, input)),
		typed && field(['To go on, type ', h('code', name)], typed), error, h('div.acts', button('Cancel', () => node.close()), go));
	node.addEventListener('close', () => resolve(false));
	(fields[0]?.input || typed || go).focus();
});

export const tell = (title, ...content) => open(title, {}, content, h('div.acts', h('button.btn.main', { autofocus: true }, 'Close')));
