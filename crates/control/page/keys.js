// Keys: every limit of a client with what remains and why; reset, block, allow, grant. Without a client: the lists.
import { h, coded, show, card, empty, emptyCard, loading, head, pill, act, table, cell } from './dom.js';
import { call, get, post, path, readOnly } from './api.js';
import { number, span, per, known, unknown, when, toMs } from './format.js';
import { every } from './live.js';
import { ask, field, notice, reason } from './dialog.js';

export const title = 'Keys';
const KINDS = ['api_key', 'user', 'tenant', 'ip'];
const OTHER = 'other…';
const text = (name) => name.replaceAll('_', ' ');

/** A key with its kind; a link to its page unless its name is cut. A name that is cut is told apart by its fingerprint. */
export const keyLink = (kind, name, fingerprint) => [h('small.faint', `${text(kind)} `), /…|^composite|^anonymous/.test(kind + name) ? h('code', name) : h('a.mono', { href: `#/keys${path(kind, name)}` }, name),
	fingerprint && name.includes('…') && h('small.faint', ` #${fingerprint}`)];

export function mount(root, { parts: [kind, value], query }) {
	const place = h('div', loading(4));
	root.append(head('Keys', 'what a client has left, and why'), lookup(kind, value, query), place);
	if (!value) return void showLists(place);
	const at = path('v1', 'keys', kind, value), view = { kind, value, at, place };
	const poll = every(2000, async () => {
		try {
			draw(view, await get(at + wanted(query)), () => poll.now());
		} catch (problem) {
			view.drawn = '';
			show(place, emptyCard('This key cannot be looked up', reason(problem)));
		}
	});
	return poll.stop;
}

function wanted(query) {
	const search = new URLSearchParams([...query].filter(([name, given]) => ['endpoint', 'method'].includes(name) && given));
	return search.size ? `?${search}` : '';
}

function lookup(kind = 'api_key', value = '', query) {
	const options = (list, chosen) => list.map((each) => h('option', { value: each, selected: each === chosen }, text(each) || 'any'));
	const input = (name, given, more) => h('input', { name, value: given ?? '', autocomplete: 'off', spellcheck: 'false', ...more });
	const kinds = h('select', { name: 'kind', onchange: () => kinds.value === OTHER && kinds.replaceWith(input('kind', '', { required: true, placeholder: 'identity' })) }, options([...new Set([...KINDS, kind, OTHER])], kind));
	const submit = (event) => {
		event.preventDefault();
		const given = new FormData(event.target), next = `#/keys${path(given.get('kind').trim(), given.get('value').trim())}${wanted(given)}`;
		if (location.hash === next) dispatchEvent(new HashChangeEvent('hashchange'));
		else location.hash = next;
	};
	return h('form.lookup', { role: 'search', onsubmit: submit }, field('Kind', kinds),
		field('Key', input('value', value, { 'data-search': true, required: true, autofocus: !value, placeholder: 'sk_live_…, 203.0.113.9, ann' })),
		field('Endpoint', input('endpoint', query.get('endpoint'), { placeholder: 'any' }), 'optional'),
		field('Method', h('select', { name: 'method' }, options(['', 'GET', 'POST', 'PUT', 'PATCH', 'DELETE'], query.get('method')))), h('button.btn.main', 'Look up'));
}

function verdict({ lists, limits, holds }) {
	const on = (list) => lists.some((entry) => entry.list === list);
	if (on('deny')) return pill('bad', 'denied by the deny list');
	if (on('allow')) return pill('ok', 'on the allow list: no limit applies');
	const waits = [...limits, ...holds].map((each) => each.retry_after).filter((wait) => wait > 0);
	if (waits.length) return pill('warn', `limited, passes again in ${span(Math.max(...waits))}`);
	return limits.length ? pill('ok', 'within its limits') : pill('plain', 'no limit applies');
}

const sizeText = ({ quota, window_seconds: window }) => `${number(quota)} ${window ? per(window) : 'in flight'}`;

/** `when`, but exact in the last seconds, where it would be “now” although the limit is not full. */
function soon(ms) {
	const seconds = (ms - Date.now()) / 1000;
	return seconds < 10 ? `in ${span(Math.max(0.1, seconds))}` : when(ms);
}

function gauge(limit) {
	const { remaining: left, quota, retry_after: wait, lent, reset_at: reset } = limit, share = known(left) ? Math.min(100, (100 * left) / quota) : 0;
	const fill = h('i'), amount = known(left) && `${number(left)} of ${number(quota)}`;
	fill.style.width = `${share}%`;
	const more = [wait > 0 && `passes again in ${span(wait)}`, lent > 0 && `${number(lent)} lent to nodes`, limit.why, reset && toMs(reset) > Date.now() && ['full ', soon(toMs(reset))]].filter(Boolean);
	return h('div.gauge', h('p', h('b.mono', limit.rule), ' ', limit.limit !== limit.rule && h('code', `${limit.limit} `), h('span.dim', `${text(limit.algorithm)}, ${sizeText(limit)}${limit.route ? `, ${limit.route}` : ''}`)),
		h('p', amount || unknown('the store does not answer')),
		h(`span.bar.${!known(left) ? 'full' : left < 1 ? 'out' : share < 20 ? 'low' : 'full'}`, { role: 'img', 'aria-label': amount ? `${amount} left` : 'not known' }, fill),
		h('p.more', more.map((part, index) => [index > 0 && ' · ', part])));
}

function draw(view, state, changed) {
	const now = JSON.stringify(state), { place, kind, value, at } = view, { limits, holds, grants, tier } = state;
	if (view.drawn === now) return;
	view.drawn = now;
	const focused = document.activeElement?.dataset?.act;
	const does = (name, label, run, kinds) => act(readOnly(), label, async () => await run() && changed(), kinds, { 'data-act': name });
	show(place, h('div.grid', h('div.stack',
		card([h('code', value), ` · ${text(kind)}`, tier && ` · tier ${tier}`], verdict(state),
			limits.length ? limits.map(gauge) : empty('No limit applies to this key', 'No rule in force counts by it, or a list lets it pass.'),
			holds.map((hold) => h('p.note.warn', `Held: ${hold.reason}, for ${span(hold.retry_after)}`)),
			h('div.row', does('reset', 'Reset', () => reset(view)), does('grant', 'Grant…', () => grant(view, limits)),
				does('block', 'Block for…', () => list(view, 'Block', 'deny', 'Every request of this key is refused with 403 until the time is over.'), 'hurt'),
				does('allow', 'Allow for…', () => list(view, 'Allow', 'allow', 'No limit applies to this key until the time is over.'))),
			readOnly() && h('p.faint', readOnly())),
		grants.length > 0 && card('Grants', null, h('ul.mini', grants.map((each) => h('li', h('span', `${number(each.remaining)} of ${number(each.tokens)} extra tokens${each.rule ? ` for ${each.rule}` : ''}, ends `, when(each.expires), each.reason && ` · ${each.reason}`),
			does(`end-${each.id}`, 'End', () => ask({ title: 'End this grant?', action: 'End grant', hurts: true, will: ['The extra tokens that are left are gone at once.'], run: () => call('DELETE', at + path('grant', each.id)) }), 'small')))))),
	card('Why', null, explained(state))));
	if (focused) place.querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
}

/** The explanation: the lists, then each rule, those that apply first. */
function explained({ lists, explain }) {
	const rules = explain?.rules || [], line = (...parts) => h('li', h('span', parts));
	const lines = [
		...lists.map((entry) => line(h('b', `${entry.list} list`), ' by ', h('code', entry.key), entry.reason && ` (${entry.reason})`, entry.expires && [', ends ', when(entry.expires)])),
		...rules.filter((rule) => !rule.mismatch).map((rule) => line(h('code', rule.id), ` counts by ${rule.key}: ${rule.limits.map(sizeText).join(', ')}`, rule.is_shadow && [' ', pill('warn', 'shadow')])),
		explain && line(coded(explain.verdict.text)),
		...rules.filter((rule) => rule.mismatch).map((rule) => line(h('span.faint', h('code', rule.id), ' does not apply: ', coded(rule.mismatch))))].filter(Boolean);
	return lines.length ? h('ol.why', lines) : h('p.dim', 'Give an endpoint to see which rules match, and why.');
}

const reset = ({ value, at }) => ask({
	title: `Reset ${value}?`, action: 'Reset',
	will: ['Every limit of this key starts fresh, on all nodes within a second. Its cooldowns end.', 'What was spent cannot be restored. The reset is in Audit.'],
	run: async () => notice(`Reset: ${number((await call('DELETE', at)).reset)} states of ${value} start fresh.`),
});

const lasting = () => ({ key: 'for', label: 'For', input: h('input', { value: '10m', required: true, pattern: '[0-9]+ *(s|m|min|h|d)', title: 'such as 90s, 10m, 1h, 7d' }) });
const because = () => ({ key: 'reason', label: 'Reason', input: h('input', { required: true }) });

const grant = ({ value, at }, limits) => ask({
	title: `Grant extra tokens to ${value}`, action: 'Grant', will: ['Requests that a limit would refuse are admitted until the tokens are spent or the time is over.', 'It can be ended here.'],
	fields: [{ key: 'tokens', label: 'Tokens', input: h('input', { type: 'number', min: 1, value: 100, required: true }) }, lasting(),
		{ key: 'rule', label: 'Rule', input: h('select', h('option', { value: '' }, 'any rule'), [...new Set(limits.map((limit) => limit.rule))].map((id) => h('option', id))) }, because()],
	run: ({ tokens, rule, ...rest }) => post(`${at}/grant`, { tokens: Number(tokens), ...rest, ...(rule && { rule }) }),
});

const list = ({ value, at }, action, name, effect) => ask({
	title: `${action} ${value}`, action, hurts: true, name: value, fields: [lasting(), because()],
	will: [effect, `It is an entry of the ${name} list, published as a new revision, and can be undone from Audit.`],
	run: (values) => post(`${at}/${action.toLowerCase()}`, values),
});

async function showLists(place) {
	const remove = (key, name) => ask({
		title: `Remove ${key} from the ${name} list`, action: 'Remove', hurts: true, name: key, will: ['The entry ends on all nodes within two seconds, as a new revision.', 'It can be undone from Audit.'],
		run: () => call('DELETE', `/v1/lists/${name}?key=${encodeURIComponent(key)}`),
	}).then((done) => done && showLists(place));
	try {
		const lists = await get('/v1/lists');
		show(place, h('div.grid.halves', ['deny', 'allow'].map((name) => card(`${name === 'deny' ? 'Deny' : 'Allow'} list`, pill('plain', number(lists[name].length)), lists[name].length
			? table(`${name} list`, ['key', 'reason', 'ends', ''], 'cards', lists[name].slice(0, 100).map(({ key, reason: why, expires }) => h('tr', h('td', h('code', key)), cell('reason', why), cell('ends', expires ? when(expires) : 'never'),
				h('td.n', act(readOnly(), 'Remove', () => remove(key, name), 'small', { 'aria-label': `Remove ${key}` }))))).node
			: empty(`The ${name} list is empty`, `Look up a key to ${name === 'deny' ? 'block it for a while' : 'let it pass without limits'}.`)))));
	} catch (problem) {
		show(place, emptyCard('Look up a key', 'An API key, a user, a tenant, an address.', `The lists cannot be shown: ${reason(problem)}`));
	}
}
