// Rules: the editor with what a publish will do beside it, the difference, the preview, the history.
import { h, coded, show, say, card, empty, emptyCard, loading, segments, head, pill, button, table, cell, act } from './dom.js';
import { call, get, post, session, readOnly, headerText } from './api.js';
import { number, percent, plural, span, when } from './format.js';
import { live, watch } from './live.js';
import { ask, notice, reason } from './dialog.js';
import { editor } from './editor.js';
import { diff, merge, splitLines } from './diff.js';
import { keyLink } from './keys.js';
import { diffCard, summary } from './difference.js';

export const title = 'Rules';
const TABS = [['edit', 'Edit'], ['diff', 'Diff'], ['preview', 'Preview'], ['history', 'History']];
const DRAFT = 'tollgate-draft';
const MOST_SHOWN = 20;

let view = null; // The page while it is shown.
export const moved = (target) => view?.moved(target);
export const resumed = () => view?.check();

/** The draft outlives a reload and a new login. Without storage, it lasts as long as the page. */
function draft(next) {
	try {
		if (next === undefined) return JSON.parse(sessionStorage.getItem(DRAFT));
		if (next) sessionStorage.setItem(DRAFT, JSON.stringify(next));
		else sessionStorage.removeItem(DRAFT);
	} catch {}
	return null;
}

export function mount(root, target) {
	// `base` is the revision that the draft started from; `report` the validation of `checked`; `stale` a newer revision.
	const state = { base: null, report: null, checked: null, stale: null, preview: null, problem: null };
	let timer = null, asked = null, tab = 'edit';
	const note = h('small'), tabs = segments('View', TABS, tab, (next) => { location.hash = `#/rules/${next}`; });
	const place = h('div', loading(8)), others = h('div');
	root.append(head('Rules', note, tabs), place);

	const message = h('input', { 'aria-label': 'Message', placeholder: 'What changes, and why', maxlength: 500, autocomplete: 'off', oninput: refresh });
	const go = h('button.btn.main', { id: 'publish', 'aria-describedby': 'why-not' }, 'Publish');
	const why = h('p', { id: 'why-not', role: 'status' });
	const giveUp = (base) => ask({ title: 'Discard the draft?', action: 'Discard', hurts: true, will: [`The editor shows revision ${base.revision}.`], run: () => reset(base) });
	const discard = button('Discard draft', () => giveUp(state.base), 'small');
	const problems = h('div.problems', { 'aria-live': 'polite' }), tests = h('div'), changes = h('div'), preview = h('div'), conflict = h('div.stack');
	const text = editor({ label: 'Rules as YAML', readOnly: Boolean(readOnly()), onchange: edited, onsubmit: () => message.focus() });
	const edit = h('div.edit',
		h('section.card.editor', { 'aria-label': 'Editor' }, h('header', 'rules.yaml', discard), text.node,
			h('footer', h('span', { id: 'editor-help' }, 'Esc, then Tab leaves the editor'), 'Ctrl Enter goes to Publish')),
		h('div.stack', conflict, h('form.card.publish', { onsubmit: publish }, h('div.row', message, go), why, changes), problems, tests, preview));

	const dirty = () => text.text !== state.base.yaml;

	/** Why Publish is disabled, or null. */
	function blocked() {
		if (readOnly()) return readOnly();
		if (live.status === 'lost') return 'No connection to the control plane.';
		if (!dirty()) return 'No changes yet.';
		if (state.stale) return `Revision ${state.stale.revision} is newer than the one you edit: take it over first.`;
		if (state.problem) return state.problem;
		if (state.checked !== text.text) return 'Validating…';
		const { errors, tests: cases } = state.report;
		if (errors.length) return `${plural(errors.length, 'error')}: line ${errors[0].line}, column ${errors[0].column}.`;
		const failed = cases.filter((test) => !test.passed);
		if (failed.length) return `${plural(failed.length, 'test')} failed: ${failed[0].name}.`;
		return message.value.trim() ? null : 'Say what changes, and why.';
	}

	function refresh() {
		if (!state.base) return;
		const not = blocked(), { revision } = state.base, nodes = live.nodes || [];
		go.disabled = Boolean(not);
		say(why, not || `Publishes revision ${revision + 1} to all nodes, as ${session.name}.`);
		discard.hidden = !dirty();
		say(note, `revision ${revision}${nodes.length ? `, in force on ${nodes.filter((node) => node.revision === revision).length} of ${plural(nodes.length, 'node')}` : ''}${dirty() ? ', edited' : ''}`);
	}

	function edited() {
		draft(dirty() ? { revision: state.base.revision, base: state.base.yaml, text: text.text } : null);
		state.preview = null;
		clearTimeout(timer);
		timer = setTimeout(check, 200);
		refresh();
	}

	/** Validates the text as it is now; asks what it would change and do. */
	async function check() {
		asked?.abort();
		asked = new AbortController();
		const { signal } = asked, yaml = text.text;
		state.asking = true;
		try {
			const report = await call('POST', '/v1/rules/validate', { yaml, signal });
			Object.assign(state, { report, checked: yaml, problem: null });
			showReport();
			refresh();
			const wanted = report.valid && dirty();
			const [changed, seen] = await Promise.allSettled(wanted
				? [call('POST', '/v1/rules/diff', { yaml, signal }), call('POST', '/v1/rules/preview', { yaml, signal })] : []);
			if (signal.aborted) return;
			show(changes, changed?.value && summary(changed.value.summary));
			state.preview = seen?.value;
			show(preview, seen?.value && card(`Preview on the last ${span(seen.value.window_seconds)}`, h('a', { href: '#/rules/preview' }, 'details'), byRule(seen.value, 6)));
		} catch (problem) {
			if (signal.aborted) return;
			state.problem = `Not validated: ${reason(problem)}`;
			refresh();
		}
		state.asking = false;
		if (tab !== 'edit') open(tab);
	}

	function showReport() {
		const { errors, warnings, tests: cases } = state.report;
		const all = [errors, warnings].flatMap((list, index) => list.map((each) => ({ ...each, severity: ['error', 'warning'][index] })));
		text.marks = all;
		show(problems, all.slice(0, MOST_SHOWN).map((each) => h(`button.note.problem.${each.severity === 'error' ? 'bad' : 'warn'}`, { type: 'button', onclick: () => text.goTo(each.line, each.column) },
			h('span', h('b', `${each.line}:${each.column}`), each.severity === 'warning' && 'warning: ', coded(each.message)), each.hint && h('span', 'hint: ', coded(each.hint)))),
		all.length > MOST_SHOWN && h('p.dim', `and ${all.length - MOST_SHOWN} more`));
		const failed = cases.filter((test) => !test.passed).length;
		show(tests, !errors.length && card('Tests', cases.length ? pill(failed ? 'bad' : 'ok', failed ? `${failed} of ${cases.length} failed` : `${cases.length} passed`) : null,
			cases.length ? h('ul.tests', cases.sort((a, b) => a.passed - b.passed).slice(0, MOST_SHOWN).map((test) => h('li', h('span', test.name, test.failures.map((each) => h('p.why', `step ${each.step}: ${each.message}`))),
				h(`span.${test.passed ? 'yes' : 'no'}`, test.passed ? '✓' : '✗', h('span.sr', test.passed ? 'passed' : 'failed')))))
				: h('p.dim', 'None. Cases under ', h('code', 'tests:'), ' run before every publish.')));
	}

	async function publish(event) {
		event.preventDefault();
		if (blocked()) return;
		go.disabled = true;
		const yaml = text.text;
		try {
			const { revision } = await call('PUT', '/v1/rules', { yaml, headers: { 'If-Match': `"${state.base.revision}"`, 'X-Message': headerText(message.value.trim()) } });
			notice(`Revision ${revision} is published.`);
			message.value = '';
			reset(await get('/v1/rules'));
		} catch (problem) {
			if (problem.status === 412) await newer();
			else if (problem.status === 422) await check();
			else notice(`Not published: ${reason(problem)}`, 'bad');
		}
		refresh();
	}

	function reset(base, yaml = base.yaml) {
		Object.assign(state, { base, stale: null, report: null, checked: null, preview: null });
		text.base = base.yaml;
		text.text = yaml;
		show(conflict);
		edited();
		check();
	}

	/** Another revision was published. Without a draft it is shown; with one, the operator chooses, and nothing is lost. */
	async function newer() {
		const current = await get('/v1/rules');
		if (current.revision === state.base.revision) return;
		if (!dirty() || text.text === current.yaml) return reset(current);
		state.stale = current;
		const [base, mine, theirs] = [state.base.yaml, text.text, current.yaml].map(splitLines);
		const merged = merge(base, mine, theirs), { revision } = current;
		const take = (label, yaml, done, kind) => button(label, () => { reset(current, yaml); notice(done); }, kind);
		show(conflict, h('div.note.warn', { role: 'alert', id: 'conflict' },
			h('b', `Revision ${revision} was published by ${current.author} while you edited revision ${state.base.revision}.`),
			h('span', `“${current.message || 'no message'}”, `, when(current.time), '. Your draft is kept. ', merged ? 'The two changes do not touch the same lines.' : 'Both change the same lines: compare, then go on with one.'),
			h('div.row', merged && take('Merge both', merged.join('\n'), `Your changes are now on revision ${revision}.`, 'main small'),
				take('Keep my text', text.text, `Your text replaces revision ${revision} when you publish; see Diff.`, 'small'),
				button('Take theirs', () => giveUp(current), 'small hurt'))),
		diffCard(`What revision ${revision} changed`, diff(base, theirs)));
		refresh();
	}

	function open(next) {
		tab = next;
		tabs.choose(next);
		show(place, next === 'edit' ? edit : others);
		if (next === 'history') history(others, newer);
		else if (next === 'preview') showPreview(others, state, dirty());
		else if (next === 'diff') show(others, dirty() ? h('div.stack', changes.hasChildNodes() && card('What changes', null, changes.cloneNode(true)), diffCard(`Revision ${state.base.revision} and the draft`, diff(splitLines(state.base.yaml), splitLines(text.text))))
			: emptyCard('No changes', 'The draft equals what is in force.'));
	}

	function toPlace({ parts, query }) {
		open(TABS.some(([name]) => name === parts[0]) ? parts[0] : 'edit');
		const found = state.base.rules?.find((rule) => rule.id === query.get('rule'));
		if (found) text.goTo(found.line, 1);
		return true;
	}

	const stopWatching = watch(() => {
		if (state.base && live.revision > Math.max(state.base.revision, state.stale?.revision || 0)) newer().catch(() => {});
		refresh();
	});
	const closing = (event) => { if (state.base && dirty()) event.preventDefault(); };
	addEventListener('beforeunload', closing);
	view = { check, moved: (next) => state.base && toPlace(next) };
	get('/v1/rules').then(async (current) => {
		const kept = draft();
		if (!kept || kept.text === current.yaml) reset(current);
		else reset(kept.revision === current.revision ? current : { ...current, revision: kept.revision, yaml: kept.base }, kept.text);
		toPlace(target);
		await newer();
	}).catch((problem) => show(place, emptyCard('The rules cannot be shown', reason(problem))));

	return () => {
		view = null;
		stopWatching();
		clearTimeout(timer);
		asked?.abort();
		removeEventListener('beforeunload', closing);
	};
}

const share = ({ limited, admitted }) => percent(limited, admitted + limited);
const shareText = (value) => (value === null ? '–' : `${value < 1 ? number(value) : value.toFixed(1)} %`);
function byRule({ rules }, most) {
	if (!rules.length) return h('p.dim', 'No request was sampled in this time.');
	return table('Preview by rule', ['rule', 'limited now#', 'with this#'], '', rules.slice(0, most).map(({ id, before, after }) => {
		const more = (share(after) ?? 0) - (share(before) ?? 0);
		return h('tr', h('td', h('code', id)), h('td.n', shareText(share(before))),
			h('td.n', Math.abs(more) >= 0.05 && [pill(more > 0 ? 'warn' : 'ok', `${more > 0 ? '+' : '−'}${Math.abs(more).toFixed(1)} pts`), ' '], shareText(share(after))));
	})).node;
}

function showPreview(place, { preview, report, asking, problem }, dirty) {
	show(place, !dirty ? emptyCard('No changes to preview', 'Edit the rules, and see here what they would have done to recent traffic.')
		: report && !report.valid ? emptyCard('The draft is not valid yet', 'A preview needs rules without errors.')
		: !preview && asking ? h('div.card', loading()) : !preview ? emptyCard('No preview', problem || 'It could not be made for this draft.') : h('div.stack', h('p.dim', `${plural(preview.requests, 'request')} of the last ${span(preview.window_seconds)}, ${preview.exact ? 'all of them' : 'by a weighted sample'}${preview.partial ? ', cut short' : ''}, replayed against both rule sets.`),
		h('div.grid', card('By rule', null, byRule(preview)),
			card('Keys that change most', null, preview.keys.length ? table('Keys that change most', ['key', 'refused now#', 'with this#'], '', preview.keys.map((key) => h('tr',
				h('td', keyLink(key.kind, key.key, key.fingerprint)), h('td.n', number(key.refused_before)), h('td.n', number(key.refused_after))))).node
				: empty('No key changes')))));
}

export const rollBack = (revision, newest) => ask({
	title: `Roll back to revision ${revision}`, action: 'Roll back', hurts: true, name: `r${revision}`,
	will: [`The text of revision ${revision} is published again as revision ${newest + 1}, and in force on all nodes within two seconds.`,
		newest - revision > 1 && `This takes back all of the revisions ${revision + 1} to ${newest}.`, 'Clients keep their tokens. It can be undone from Audit.'],
	run: async () => notice(`Revision ${(await post(`/v1/revisions/${revision}/rollback`, {})).revision} is published: the text of revision ${revision}.`),
});

function history(place, changed) {
	const { node, body } = table('Revisions', ['revision', 'message', 'author', 'when', ''], 'cards');
	const older = button('Older', load), shown = h('div');
	let before = '', newest = 0;
	async function load() {
		try {
			const { revisions } = await get(`/v1/revisions?count=${MOST_SHOWN}${before}`);
			newest ||= revisions[0]?.revision;
			for (const { revision: n, message, origin, author, time } of revisions) {
				body.append(h('tr', cell('revision', h('span', h('b', `r${n}`), n === newest && [' ', pill('ok', 'newest')])),
					h('td', h('p', message || h('span.faint', 'no message'), origin !== 'published' && [' ', pill('plain', origin)])),
					cell('author', author), cell('when', when(time)),
					h('td.n', h('span.row', n > 1 && button('Diff', () => compare(n), 'small', { 'aria-label': `What revision ${n} changed` }),
						n !== newest && act(readOnly(), 'Roll back', async () => {
							if (await rollBack(n, newest)) location.hash = '#/rules', await changed();
						}, 'small hurt', { 'aria-label': `Roll back to revision ${n}` })))));
			}
			const last = revisions.at(-1)?.revision;
			before = `&before=${last}`;
			older.hidden = !(last > 1);
		} catch (problem) {
			show(place, emptyCard('The history cannot be shown', reason(problem)));
		}
	}
	async function compare(n) {
		try {
			const texts = await Promise.all([n - 1, n].map(async (each) => splitLines((await get(`/v1/revisions/${each}`)).yaml)));
			show(shown, diffCard(`What revision ${n} changed`, diff(...texts)));
			shown.scrollIntoView({ block: 'nearest' });
		} catch (problem) {
			notice(reason(problem), 'bad');
		}
	}
	show(place, h('div.stack', h('div.card', node, older), shown));
	load();
}
